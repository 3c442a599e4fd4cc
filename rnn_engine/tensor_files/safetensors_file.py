"""Read .safetensors (and ai00's .st): the header's length in 8 bytes, the header in JSON, then the tensors' bytes.

The safetensors package maps the file to read it, which this project does not do; so the header is judged here, as
strictly as there: every tensor as long as its shape and type say, one behind the other, up to the file's last byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import ByteSource, FileStamp
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.source import TensorInfo

_LENGTH_BYTES: Final = 8
HEADER_LIMIT: Final = 100_000_000  # bytes; the format's own

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""The format's name of an element type -> the type."""


class SafetensorsFile:
    """An open safetensors file. Closes `file` with itself."""

    def __init__(self, file: ByteSource, header_limit: int = HEADER_LIMIT) -> None:
        """Raises ModelError where the file is damaged, or where its header has more than `header_limit` bytes."""
        self._file = file
        header, data_start = _read_header(file, header_limit)
        try:
            self.metadata = _strings(header.pop("__metadata__", {}))
            entries = {name: _Entry(entry) for name, entry in header.items()}
            self._tensors = {
                name: TensorInfo(entry.shape, _dtype(file, name, entry.dtype)) for name, entry in entries.items()
            }
            _check_places(zip(entries.values(), self._tensors.values(), strict=True), file.stamp.size - data_start)
        except (TypeError, ValueError, KeyError) as error:
            raise _damaged(file, f"its header makes no sense: {error}") from error
        self._starts = {name: data_start + entry.begin for name, entry in entries.items()}

    @property
    def stamp(self) -> FileStamp:
        return self._file.stamp

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> NDArray[Any]:
        info = self._tensors[name]
        data = self._file.read(self._starts[name], info.num_bytes)
        return data.view(info.dtype).reshape(info.shape)

    def read_blocks(self, name: str) -> None:
        """Return None: the format has plain numbers alone."""

    def close(self) -> None:
        self._file.close()


class _Entry:
    """What the header says of one tensor. Raises TypeError, ValueError or KeyError where that is something else."""

    def __init__(self, entry: Any) -> None:  # noqa: ANN401
        self.dtype = str(entry["dtype"])
        self.shape = tuple(map(_count, entry["shape"]))
        self.begin, self.end = map(_count, entry["data_offsets"])


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a size or a position is not a count")
    return value


def _strings(metadata: object) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the metadata are not texts by name")
    return metadata


def _read_header(file: ByteSource, limit: int) -> tuple[dict[str, Any], int]:
    """Return the header and where the tensors' bytes begin."""
    length = int.from_bytes(file.read(0, _LENGTH_BYTES).tobytes(), "little")
    data_start = _LENGTH_BYTES + length
    if length > limit or data_start > file.stamp.size:
        raise _damaged(
            file, f"it has {file.stamp.size} bytes and its header {length}; expected at most {limit} in the header"
        )
    try:
        header = json.loads(file.read(_LENGTH_BYTES, length).tobytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(file, f"its header is a {type(header).__name__}")
    return header, data_start


def _check_places(tensors: Iterable[tuple[_Entry, TensorInfo]], size: int) -> None:
    """Raise ValueError unless the tensors fill the `size` bytes after the header, none of them twice."""
    filled = 0
    for entry, info in sorted(tensors, key=lambda pair: (pair[0].begin, pair[0].end)):
        expected = filled + info.num_bytes
        if (entry.begin, entry.end) != (filled, expected):
            raise ValueError(f"a tensor is in bytes {entry.begin} to {entry.end}; expected {filled} to {expected}")
        filled = expected
    if filled != size:
        raise ValueError(f"the tensors have {filled} bytes and the file {size} for them")


def _dtype(file: ByteSource, name: str, stored: str) -> np.dtype[Any]:
    if stored not in DTYPES:
        raise ModelError(
            f"{file.path}: tensor {show(name)} has the element type {stored}; expected one of {', '.join(DTYPES)}"
        )
    return DTYPES[stored]


def _damaged(file: ByteSource, what: str) -> ModelError:
    return ModelError(f"{file.path}: damaged or truncated safetensors file: {what}")
