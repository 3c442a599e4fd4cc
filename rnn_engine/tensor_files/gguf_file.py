"""Read and write .gguf, the files of llama.cpp: a header, and then the tensors, each at a multiple of the alignment.

The gguf package writes the files, but its reader does not do here: it maps the file, and a mapped file that is
truncated ends the process; it takes two seconds for World's vocabulary, and sets no bounds on a header.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO, Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import Blocks
from rnn_engine.quantised.gguf_blocks import read_blocks
from rnn_engine.tensor_files.source import (
    ALL_ROWS,
    BinaryFile,
    ByteSource,
    TensorEntry,
    TensorInfo,
    TensorSource,
    show,
    span_of_rows,
)


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type of ggml: how many bytes store a number or a block of numbers, and numpy's type to read them."""

    name: str
    block_size: int  # numbers
    block_bytes: int
    dtype: np.dtype[Any]

    @property
    def is_block(self) -> bool:
        return self.block_size > 1

    def decode(self, data: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the numbers of a tensor of `shape` from its stored bytes; numbers in blocks are decoded to f32."""
        if not self.is_block:
            return data.view(self.dtype).reshape(shape)
        from gguf import GGMLQuantizationType, quants

        blocks = data.reshape(-1, shape[-1] // self.block_size * self.block_bytes)  # [rows, bytes of a row]
        with np.errstate(all="ignore"):  # of a damaged block: its scale may be anything
            numbers = quants.dequantize(blocks, GGMLQuantizationType[self.name])
        return numbers.reshape(shape)


def _plain(name: str, dtype: Any) -> ElementType:  # noqa: ANN401
    return ElementType(name, 1, np.dtype(dtype).itemsize, np.dtype(dtype))


def _blocks(name: str, block_size: int, block_bytes: int) -> ElementType:
    return ElementType(name, block_size, block_bytes, np.dtype(np.float32))


ELEMENT_TYPES: Final[Mapping[int, ElementType]] = {
    0: _plain("F32", np.float32),
    1: _plain("F16", np.float16),
    2: _blocks("Q4_0", 32, 18),
    3: _blocks("Q4_1", 32, 20),
    6: _blocks("Q5_0", 32, 22),
    7: _blocks("Q5_1", 32, 24),
    8: _blocks("Q8_0", 32, 34),
    10: _blocks("Q2_K", 256, 84),
    11: _blocks("Q3_K", 256, 110),
    12: _blocks("Q4_K", 256, 144),
    13: _blocks("Q5_K", 256, 176),
    14: _blocks("Q6_K", 256, 210),
    20: _blocks("IQ4_NL", 32, 18),
    23: _blocks("IQ4_XS", 256, 136),
    30: _plain("BF16", ml_dtypes.bfloat16),
}
"""The number that a GGUF file gives for an element type -> the type."""


# Read the header of a GGUF file: its metadata and the list of its tensors, with bounds on its size.

HEADER_LIMIT: Final = 100_000_000  # bytes
_MOST_ENTRIES: Final = 1 << 16  # of the metadata, and of the tensors
_MOST_STRINGS: Final = 1 << 19  # in all arrays of the metadata
_MOST_DIMENSIONS: Final = 4
_WINDOW_BYTES: Final = 1 << 20  # read at once
_VERSIONS: Final = (2, 3)

_NUMBERS: Final[Mapping[int, str]] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""The number that a GGUF file gives for the type of a metadata value -> numpy's type. Only types of numbers."""
_STRING: Final = 8
_ARRAY: Final = 9

Metadata = Mapping[str, Any]
"""A GGUF file's metadata: key -> a number, a text, an array of numbers, or a list of bytes."""


def _damaged(file: ByteSource, what: str) -> ModelError:
    return ModelError(f"{file.path}: damaged or truncated GGUF file: {what}")


class _HeaderReader:
    """Reads the values of a GGUF header one after another, never beyond the file or the greatest length of a header."""

    def __init__(self, file: BinaryFile) -> None:
        self.position = 0
        self._file = file
        self._end = min(file.stamp.size, HEADER_LIMIT)
        self._window = b""
        self._window_start = 0
        self._strings_left = _MOST_STRINGS

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes of the header, and move past them."""
        if size > self._end - self.position:
            limit = "the file" if self._end == self._file.stamp.size else f"the {HEADER_LIMIT} bytes of a header"
            raise _damaged(
                self._file, f"{size} bytes at {self.position} reach beyond {limit}, which has {self._end} bytes"
            )
        start = self.position - self._window_start
        if start + size > len(self._window):
            length = min(max(size, _WINDOW_BYTES), self._end - self.position)
            self._window = self._file.read(self.position, length).tobytes()
            self._window_start, start = self.position, 0
        self.position += size
        return self._window[start : start + size]

    def integer(self, form: str) -> int:
        """Read the next integer of the header; `form` is its format for `struct`."""
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def string(self) -> bytes:
        return self.take(self.integer("<Q"))

    def text(self, what: str) -> str:
        """Read the next string of the header, in UTF-8. `what` describes it in the error message."""
        data = self.string()
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _damaged(self._file, f"{what} is not valid UTF-8: {show(repr(data[:100]))}") from error

    def value(self) -> Any:  # noqa: ANN401
        """Read the next metadata value of the header: the number of its type, and then the value."""
        kind = self.integer("<I")
        if kind == _STRING:
            return self.string().decode("utf-8", "backslashreplace")
        if kind == _ARRAY:
            return self._array()
        return self._numbers(kind, 1)[0].item()

    def _array(self) -> list[bytes] | NDArray[Any]:
        kind, count = self.integer("<I"), self.integer("<Q")
        if kind != _STRING:
            return self._numbers(kind, count)
        self._strings_left -= count
        if self._strings_left < 0:
            raise _damaged(self._file, f"an array counts {count} texts; expected at most {_MOST_STRINGS} in all")
        return [self.string() for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> NDArray[Any]:
        if kind not in _NUMBERS:
            raise _damaged(self._file, f"a value of the metadata has the type {kind}; expected 0 to {max(_NUMBERS)}")
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)


_ALIGNMENT_KEY: Final = "general.alignment"
_DEFAULT_ALIGNMENT: Final = 32
_MOST_ALIGNMENT: Final = 1 << 20
_PARTS_KEY: Final = "split.count"
_MOST_PARTS: Final = 99_999  # that their names can number


@dataclass(frozen=True, slots=True)
class _TensorPlace:
    """The position of a tensor's bytes in a file, and the element type in which they are stored."""

    type: ElementType
    start: int
    num_bytes: int


class GgufFile(TensorSource):
    """An open GGUF file, from which metadata and tensors are read. Numbers in blocks are read as f32.

    Dimensions are in numpy's order, the fastest last.
    """

    def __init__(self, file: BinaryFile) -> None:
        """Read the file's header. Raises ModelError if it is damaged, or larger than a model's can be."""
        super().__init__(file)
        self.tensors: dict[str, TensorInfo] = {}
        self._places: dict[str, _TensorPlace] = {}
        reader = _HeaderReader(file)
        num_tensors, num_keys = self._read_counts(reader)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._new(reader.text("a key"), metadata)
            metadata[key] = reader.value()
        self.metadata: Metadata = metadata
        entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name = self._new(reader.text("a tensor's name"), entries)
            entries[name] = self._read_entry(reader, name)
        alignment = self._alignment()
        data_start = expected = _align(reader.position, alignment)
        for name, (dimensions, type_number, offset) in entries.items():
            start = data_start + offset
            if start != expected:
                raise self._damaged(
                    f"tensor {show(name)} begins at byte {offset}; expected {expected - data_start}, "
                    "the end of the one before"
                )
            expected = _align(self._add(name, dimensions, self._element(name, type_number), start), alignment)

    def read(self, name: str, rows: slice = ALL_ROWS) -> NDArray[Any]:
        data, shape = self._read(name, rows)
        return self._places[name].type.decode(data, shape)

    def read_blocks(self, name: str, rows: slice = ALL_ROWS) -> Blocks | None:
        kind = self._places[name].type.name
        if len(self.tensors[name].shape) != 2 or not self._places[name].type.is_block:
            return None
        return read_blocks(kind, *self._read(name, rows))

    def _read(self, name: str, rows: slice) -> tuple[NDArray[np.uint8], tuple[int, ...]]:
        """Return the bytes of some rows of a tensor, and the rows' shape."""
        place = self._places[name]
        start, num_bytes, shape = span_of_rows(self.tensors[name].shape, place.num_bytes, rows)
        return self._file.read(place.start + start, num_bytes), shape

    def _add(self, name: str, dimensions: tuple[int, ...], element: ElementType, start: int) -> int:
        """Record the place of a tensor that begins at byte `start` of the file; return the position after it.

        `dimensions` begin with the fastest.

        Raises ModelError if its rows are no whole blocks, if it would not end within the file, or if it is too large.
        """
        if dimensions[0] % element.block_size:
            raise self._damaged(
                f"tensor {show(name)} has rows of {dimensions[0]} numbers; expected a multiple of "
                f"{element.block_size} for {element.name}"
            )
        num_bytes = prod(dimensions) // element.block_size * element.block_bytes
        self._check_end(start, num_bytes, f"tensor {show(name)}")
        try:
            info = TensorInfo(dimensions[::-1], element.dtype, element.name if element.is_block else None)
        except ValueError as error:
            raise self._damaged(f"tensor {show(name)}: {error}") from error
        self.tensors[name], self._places[name] = info, _TensorPlace(element, start, num_bytes)
        return start + num_bytes

    def _check_end(self, start: int, num_bytes: int, what: str) -> None:
        """Raise ModelError, with `what` in the message, unless `num_bytes` from `start` on are within the file."""
        if start + num_bytes > self._file.stamp.size:
            raise self._damaged(
                f"{what} has {num_bytes} bytes from {start} on; expected an end within the {self._file.stamp.size} "
                "bytes of the file"
            )

    def _read_counts(self, reader: _HeaderReader) -> tuple[int, int]:
        """Read the beginning of the header: return the number of tensors and of keys of the metadata."""
        reader.take(4)  # the magic bytes
        version = reader.integer("<I")
        if version not in _VERSIONS:
            path = self._file.path
            if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
                raise ModelError(f"{path} is a GGUF file for big-endian machines; expected a little-endian one")
            raise ModelError(f"{path} is a GGUF file of version {version}; expected 2 or 3")
        num_tensors, num_keys = reader.integer("<Q"), reader.integer("<Q")
        for count, what in ((num_tensors, "tensors"), (num_keys, "keys")):
            if count > _MOST_ENTRIES:
                raise self._damaged(f"it counts {count} {what}; expected at most {_MOST_ENTRIES}")
        return num_tensors, num_keys

    def _new(self, name: str, found: Mapping[str, object]) -> str:
        if name in found:
            raise self._damaged(f"{show(name)} occurs twice")
        return name

    def _read_entry(self, reader: _HeaderReader, name: str) -> tuple[tuple[int, ...], int, int]:
        """Return a tensor's dimensions, the fastest first, the number of its type, and its place among the data."""
        num_dimensions = reader.integer("<I")
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise self._damaged(
                f"tensor {show(name)} has {num_dimensions} dimensions; expected 1 to {_MOST_DIMENSIONS} of them"
            )
        dimensions = tuple(reader.integer("<Q") for _ in range(num_dimensions))
        if 0 in dimensions:
            raise self._damaged(
                f"tensor {show(name)} has the dimensions {list(dimensions)}; expected dimensions of at least 1"
            )
        return dimensions, reader.integer("<I"), reader.integer("<Q")

    @property
    def num_parts(self) -> int:
        """The number of files that the model is split into. Raises ModelError if the file gives no possible number."""
        parts = self.metadata.get(_PARTS_KEY, 1)
        if type(parts) is not int or not 0 <= parts <= _MOST_PARTS:
            raise self._damaged(f"{_PARTS_KEY} is {show(str(parts))}; expected a number up to {_MOST_PARTS}")
        return max(parts, 1)

    def _alignment(self) -> int:
        alignment = self.metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= _MOST_ALIGNMENT or alignment % 8:
            raise self._damaged(
                f"{_ALIGNMENT_KEY} is {show(str(alignment))}; expected a multiple of 8, at most {_MOST_ALIGNMENT}"
            )
        return alignment

    def _element(self, name: str, type_number: int) -> ElementType:
        element = ELEMENT_TYPES.get(type_number)
        if element is None:
            from gguf import GGMLQuantizationType

            known = {kind.value: f" ({kind.name})" for kind in GGMLQuantizationType}
            names = ", ".join(each.name for each in ELEMENT_TYPES.values())
            raise ModelError(
                f"{self._file.path}: tensor {show(name)} has the GGUF type number {type_number}"
                f"{known.get(type_number, '')}; expected one of {names}"
            )
        return element

    def _damaged(self, what: str) -> ModelError:
        return _damaged(self._file, what)


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


_BY_NAME: Final = {each.name: (number, each) for number, each in ELEMENT_TYPES.items()}
_PLAIN: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def write_gguf(file: IO[bytes], architecture: str, values: Metadata, entries: Sequence[TensorEntry]) -> None:
    """Write a GGUF file with the tensors of `entries`, in their order, and with `values` as metadata.

    `file` is an open file of the file system.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(file.name, architecture)
    try:
        for key, value in values.items():
            match value:
                case bool():
                    writer.add_bool(key, value)
                case float():
                    writer.add_float32(key, value)
                case int():
                    (writer.add_uint32 if 0 <= value < 1 << 32 else writer.add_int64)(key, value)
                case str():
                    writer.add_string(key, value)
                case _ if len(value):
                    writer.add_array(key, value.tolist() if isinstance(value, np.ndarray) else value)
        for entry in entries:
            number, element = _BY_NAME[entry.info.block_type or _PLAIN[entry.info.dtype.name]]
            shape = entry.info.shape
            size = prod(shape) // element.block_size * element.block_bytes
            writer.add_tensor_info(entry.name, shape, np.dtype(np.float32), size, GGMLQuantizationType(number))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:
            writer.write_tensor_data(np.ascontiguousarray(entry.read()).reshape(-1).view(np.uint8))
    finally:
        writer.close()
