"""Read and write .safetensors files (and ai00's .st), some with this project's quantised matrices.

The safetensors package does not do here: it gives no metadata of a file in memory, and waits for ever if the path is a
pipe. It does not notice that a file was overwritten while it is read, and writes only tensors that are all in memory at
once. The header is checked as strictly as there: every tensor has the length that its shape and type give, and the
tensors fill the file without gaps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import KEPT_FORMATS, BlockFormat, Blocks, blocks_of_row, bytes_of_codes
from rnn_engine.tensor_files.source import (
    ALL_ROWS,
    ByteSource,
    TensorEntry,
    TensorInfo,
    TensorSource,
    show,
    span_of_rows,
)

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
"""The name of an element type in safetensors files -> numpy's type."""


class SafetensorsFile(TensorSource):
    """An open safetensors file. A quantised matrix, stored as codes and scales, is read as one tensor."""

    def __init__(self, file: ByteSource, header_limit: int = HEADER_LIMIT) -> None:
        """Read the header of the file.

        Raises ModelError if the file is damaged, or if the header has more than `header_limit` bytes.
        """
        super().__init__(file)
        header, data_start = _read_header(file, header_limit)
        try:
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            if not isinstance(self.metadata, dict) or not all(isinstance(each, str) for each in self.metadata.values()):
                raise ValueError("the metadata is not an object of texts")
            entries = {name: _HeaderEntry(entry) for name, entry in header.items()}
            self._plain = {
                name: TensorInfo(entry.shape, _dtype(file, name, entry.dtype)) for name, entry in entries.items()
            }
            _check_places(zip(entries.values(), self._plain.values(), strict=True), file.stamp.size - data_start)
        except (TypeError, ValueError, KeyError) as error:
            raise _damaged(file, f"its header is invalid: {error}") from error
        self._starts = {name: data_start + entry.begin for name, entry in entries.items()}
        self._matrices = _matrices(file.path, self.metadata)
        self.tensors = dict(self._plain)
        for name, matrix in self._matrices.items():
            info = _check(file.path, name, matrix, self.tensors)
            del self.tensors[name + CODES], self.tensors[name + FIGURES]
            self.tensors[name] = info

    def read(self, name: str, rows: slice = ALL_ROWS) -> NDArray[Any]:
        blocks = self.read_blocks(name, rows)
        return self._read(name, rows) if blocks is None else blocks.numbers()

    def read_blocks(self, name: str, rows: slice = ALL_ROWS) -> Blocks | None:
        matrix = self._matrices.get(name)
        if matrix is None:
            return None
        codes, figures = (self._read(name + part, rows) for part in (CODES, FIGURES))
        return Blocks(matrix.format, matrix.num_columns, codes, figures)

    def _read(self, name: str, rows: slice) -> NDArray[Any]:
        info = self._plain[name]
        start, num_bytes, shape = span_of_rows(info.shape, info.num_bytes, rows)
        return self._file.read(self._starts[name] + start, num_bytes).view(info.dtype).reshape(shape)


class _HeaderEntry:
    """The entry for one tensor in a safetensors header, parsed from JSON.

    Raises TypeError, ValueError or KeyError if `entry` describes no tensor.
    """

    def __init__(self, entry: Any) -> None:  # noqa: ANN401
        self.dtype = str(entry["dtype"])
        self.shape = tuple(map(_count, entry["shape"]))
        self.begin, self.end = map(_count, entry["data_offsets"])


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a size or a position is not an integer of at least 0")
    return value


def _read_header(file: ByteSource, limit: int) -> tuple[dict[str, Any], int]:
    """Return a safetensors file's header, parsed from JSON, and the position of the tensors' bytes after it."""
    length = int.from_bytes(file.read(0, _LENGTH_BYTES).tobytes(), "little")
    data_start = _LENGTH_BYTES + length
    if length > limit or data_start > file.stamp.size:
        raise _damaged(
            file, f"it has {file.stamp.size} bytes and its header {length}; expected a whole header of at most {limit}"
        )
    try:
        header = json.loads(file.read(_LENGTH_BYTES, length).tobytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"its header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(file, f"its header is a {type(header).__name__}; expected an object")
    return header, data_start


def _check_places(tensors: Iterable[tuple[_HeaderEntry, TensorInfo]], size: int) -> None:
    """Raise ValueError unless the tensors fill the `size` bytes after the header without gaps or overlaps."""
    filled = 0
    for entry, info in sorted(tensors, key=lambda pair: (pair[0].begin, pair[0].end)):
        expected = filled + info.num_bytes
        if (entry.begin, entry.end) != (filled, expected):
            raise ValueError(f"a tensor is in bytes {entry.begin} to {entry.end}; expected {filled} to {expected}")
        filled = expected
    if filled != size:
        raise ValueError(f"the tensors have {filled} bytes, but the file has {size} bytes for them")


def _dtype(file: ByteSource, name: str, stored: str) -> np.dtype[Any]:
    if stored not in DTYPES:
        raise ModelError(
            f"{file.path}: tensor {show(name)} has the element type {stored}; expected one of {', '.join(DTYPES)}"
        )
    return DTYPES[stored]


def _damaged(file: ByteSource, what: str) -> ModelError:
    return ModelError(f"{file.path}: damaged or truncated safetensors file: {what}")


# Quantised models in safetensors: the codes and the figures of each matrix, and a description of them.
#
# The header's metadata give the weight format and the number of columns of each matrix. Other tensors are stored as
# usual.

METADATA_KEY: Final = "rnn_engine.blocks"
CODES: Final = ".codes"  # the end of the tensor's name, after the matrix's
FIGURES: Final = ".figures"


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """The weight format and number of columns of a quantised matrix, which a safetensors file's metadata give."""

    format: BlockFormat
    num_columns: int

    def shapes(self, num_rows: int) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the two tensors that store the matrix: ".codes" and ".figures" (scales) -> shape."""
        row_blocks = blocks_of_row(self.num_columns, self.format.block_columns)
        return {
            CODES: (num_rows, row_blocks, bytes_of_codes(self.format)),
            FIGURES: (num_rows, row_blocks, self.format.num_figures),
        }


def describe_matrices(matrices: Mapping[str, StoredMatrix]) -> dict[str, str]:
    """Return safetensors metadata that give the format and number of columns of the named quantised matrices."""
    described = {name: {"format": each.format.name, "columns": each.num_columns} for name, each in matrices.items()}
    return {METADATA_KEY: json.dumps(described, separators=(",", ":"))}


def _matrices(path: Path, metadata: Mapping[str, str]) -> dict[str, StoredMatrix]:
    """Return the quantised matrices that a file's metadata describe. Raises ModelError if they make no sense."""
    try:
        described = json.loads(metadata.get(METADATA_KEY, "{}"))
        return {name: _matrix(entry) for name, entry in described.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path}: the metadata's {METADATA_KEY} is invalid: {show(str(error))}") from error


def _matrix(entry: Any) -> StoredMatrix:  # noqa: ANN401
    """Parse the metadata of one quantised matrix. Raises TypeError, ValueError or KeyError if they describe none."""
    name, num_columns = entry["format"], entry["columns"]
    if name not in KEPT_FORMATS:
        raise ValueError(f"the format {name!r} is not known; expected one of {', '.join(KEPT_FORMATS)}")
    if type(num_columns) is not int or not 0 < num_columns < 1 << 32:
        raise ValueError(f"{num_columns!r} columns; expected a number from 1 to 2^32")
    return StoredMatrix(KEPT_FORMATS[name], num_columns)


def _check(path: Path, name: str, matrix: StoredMatrix, tensors: Mapping[str, TensorInfo]) -> TensorInfo:
    """Return the shape and type of a quantised matrix. Raises ModelError unless its codes and figures fit."""
    parts = {part: tensors.get(name + part) for part in (CODES, FIGURES)}
    if name in tensors or None in parts.values():
        raise ModelError(f"{path}: {show(name)} is in blocks; expected {show(name)}{CODES} and {FIGURES} in its place")
    num_rows = next(info.shape[0] if info and info.shape else 0 for info in parts.values())
    for part, shape in matrix.shapes(num_rows).items():
        info, dtype = parts[part], np.dtype(np.uint8 if part == CODES else np.float16)
        if info != TensorInfo(shape, dtype):
            found = "" if info is None else f"{list(info.shape)} of {info.dtype.name}"
            expected = f"{list(shape)} of {dtype.name} for {matrix.num_columns} columns in {matrix.format.name}"
            raise ModelError(f"{path}: {show(name)}{part} is {found}; expected {expected}")
    return TensorInfo((num_rows, matrix.num_columns), np.dtype(np.float32), matrix.format.name)


_ALIGNMENT: Final = 8
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def encode_header(tensors: Iterable[tuple[str, Sequence[int], np.dtype[Any]]], metadata: Mapping[str, str]) -> bytes:
    """Return the beginning of a safetensors file: its length field and its header, without the bytes of `tensors`.

    Each tensor is given by name, shape and type; their bytes follow in this order.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, shape, dtype in tensors:
        start, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded


def write_safetensors(file: IO[bytes], entries: Sequence[TensorEntry], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with the tensors of `entries`, in their order."""
    file.write(encode_header([(entry.name, entry.info.shape, entry.info.dtype) for entry in entries], metadata))
    for entry in entries:
        entry.write(file)


def widest_first(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Sort tensors by element size, the largest first, so that each begins at a multiple of its element size."""
    return sorted(entries, key=lambda entry: -entry.info.dtype.itemsize)
