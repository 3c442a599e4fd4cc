"""Write .safetensors tensor by tensor; the safetensors package wants all of them in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

from rnn_engine.tensor_files.entry import TensorEntry
from rnn_engine.tensor_files.safetensors_file import DTYPES

_ALIGNMENT: Final = 8
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def write_safetensors(file: IO[bytes], entries: Sequence[TensorEntry], metadata: Mapping[str, str]) -> None:
    """Write `entries` in their order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for entry in entries:
        start, end = end, end + entry.info.num_bytes
        header[entry.name] = {
            "dtype": _NAMES[entry.info.dtype],
            "shape": list(entry.info.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for entry in entries:
        entry.write(file)


def widest_first(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Return tensors in the order in which each begins at a multiple of its type's size."""
    return sorted(entries, key=lambda entry: -entry.info.dtype.itemsize)
