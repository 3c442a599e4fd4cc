"""Write safetensors files whose size is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.atomic_file import atomic_file

_DTYPE_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint32): "U32"}


def encode_header(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """Everything of a safetensors file but the tensors' bytes, which follow in the mapping's order."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        entries[name] = {
            "dtype": _DTYPE_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def file_bytes(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> int:
    """The exact size of the file that `write_file` makes."""
    return len(encode_header(tensors, metadata)) + sum(array.nbytes for array in tensors.values())


def file_parts(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, piece by piece."""
    yield encode_header(tensors, metadata)
    for array in tensors.values():
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_file(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file in one step: a crash leaves the old file or the new one, on the disk."""
    with atomic_file(path) as file:
        for part in file_parts(tensors, metadata):
            file.write(part)
