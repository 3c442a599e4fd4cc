"""Read and write .gguf, the files of llama.cpp: a header, and then the tensors, each at a multiple of the alignment.

The gguf package writes the files, but its reader does not do here: it maps the file, and a mapped file that is
truncated ends the process; it takes two seconds for World's vocabulary, and sets no bounds on a header.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import BinaryFile, ByteSource
from rnn_engine.tensor_files.ggml_file import ELEMENT_TYPES, ElementType, GgmlFile
from rnn_engine.tensor_files.source import TensorEntry, show

if TYPE_CHECKING:
    from gguf import GGUFWriter


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


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """The entry for one tensor in the header of a GGUF file."""

    name: str
    dimensions: tuple[int, ...]  # the fastest first, the reverse of numpy's order
    type_number: int
    offset: int  # in bytes, from the start of the tensors' data


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a GGUF file: the metadata, and an entry for each tensor."""

    metadata: Metadata
    entries: tuple[StoredEntry, ...]
    size: int  # bytes


def read_header(file: BinaryFile) -> Header:
    """Read the header of a GGUF file. Raises ModelError if it is damaged, or larger than a model's can be."""
    reader = _HeaderReader(file)
    reader.take(4)  # the magic bytes
    version = reader.integer("<I")
    if version not in _VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise ModelError(f"{file.path} is a GGUF file for big-endian machines; expected a little-endian one")
        raise ModelError(f"{file.path} is a GGUF file of version {version}; expected 2 or 3")
    num_tensors, num_keys = reader.integer("<Q"), reader.integer("<Q")
    for count, what in ((num_tensors, "tensors"), (num_keys, "keys")):
        if count > _MOST_ENTRIES:
            raise damaged(file, f"it counts {count} {what}; expected at most {_MOST_ENTRIES}")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        _add(file, metadata, reader.text("a key"), reader.value)
    entries: dict[str, StoredEntry] = {}
    for _ in range(num_tensors):
        name = reader.text("a tensor's name")
        _add(file, entries, name, lambda name=name: _read_entry(file, reader, name))  # type: ignore[misc]
    return Header(metadata, tuple(entries.values()), reader.position)


def damaged(file: ByteSource, what: str) -> ModelError:
    return ModelError(f"{file.path}: damaged or truncated GGUF file: {what}")


def _add(file: BinaryFile, found: dict[str, Any], name: str, read: Callable[[], Any]) -> None:
    if name in found:
        raise damaged(file, f"{show(name)} occurs twice")
    found[name] = read()


def _read_entry(file: BinaryFile, reader: _HeaderReader, name: str) -> StoredEntry:
    num_dimensions = reader.integer("<I")
    if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
        raise damaged(
            file, f"tensor {show(name)} has {num_dimensions} dimensions; expected 1 to {_MOST_DIMENSIONS} of them"
        )
    dimensions = tuple(reader.integer("<Q") for _ in range(num_dimensions))
    if 0 in dimensions:
        raise damaged(
            file, f"tensor {show(name)} has the dimensions {list(dimensions)}; expected dimensions of at least 1"
        )
    return StoredEntry(name, dimensions, reader.integer("<I"), reader.integer("<Q"))


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
            raise damaged(
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
            raise damaged(self._file, f"{what} is not valid UTF-8: {show(repr(data[:100]))}") from error

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
            raise damaged(self._file, f"an array counts {count} texts; expected at most {_MOST_STRINGS} in all")
        return [self.string() for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> NDArray[Any]:
        if kind not in _NUMBERS:
            raise damaged(self._file, f"a value of the metadata has the type {kind}; expected 0 to {max(_NUMBERS)}")
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)


_ALIGNMENT_KEY: Final = "general.alignment"
_DEFAULT_ALIGNMENT: Final = 32
_MOST_ALIGNMENT: Final = 1 << 20
_PARTS_KEY: Final = "split.count"
_MOST_PARTS: Final = 99_999  # that their names can number


class GgufFile(GgmlFile):
    """An open GGUF file, from which metadata and tensors are read."""

    def __init__(self, file: BinaryFile) -> None:
        """Read the file's header. Raises ModelError if the file is damaged."""
        super().__init__(file)
        header = read_header(file)
        self.metadata: Metadata = header.metadata
        alignment = self._alignment()
        data_start = expected = _align(header.size, alignment)
        for entry in header.entries:
            start = data_start + entry.offset
            if start != expected:
                raise self._damaged(
                    f"tensor {show(entry.name)} begins at byte {entry.offset}; expected {expected - data_start}, "
                    "the end of the one before"
                )
            end = self._add(entry.name, entry.dimensions, self._element(entry), start)
            expected = _align(end, alignment)

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

    def _element(self, entry: StoredEntry) -> ElementType:
        element = ELEMENT_TYPES.get(entry.type_number)
        if element is None:
            names = ", ".join(each.name for each in ELEMENT_TYPES.values())
            raise ModelError(
                f"{self._file.path}: tensor {show(entry.name)} has the GGUF type number {entry.type_number}; "
                f"expected one of {names}"
            )
        return element

    def _damaged(self, what: str) -> ModelError:
        return damaged(self._file, what)


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


_BY_NAME: Final = {each.name: (number, each) for number, each in ELEMENT_TYPES.items()}
_PLAIN: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

Value = str | int | float


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """A tokenizer's vocabulary for a GGUF file: each token id's escaped byte string and llama.cpp's token type."""

    tokens: Sequence[bytes]
    kinds: Sequence[int]


def write_gguf(
    file: IO[bytes],
    architecture: str,
    values: Mapping[str, Value],
    vocabulary: GgufVocabulary | None,
    entries: Sequence[TensorEntry],
) -> None:
    """Write a GGUF file with the tensors of `entries`, in their order, and with `values` as metadata.

    `file` is an open file of the file system.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(file.name, architecture)
    try:
        for key, value in values.items():
            _add_value(writer, key, value)
        if vocabulary is not None:
            writer.add_token_list(list(vocabulary.tokens))
            writer.add_token_types(list(vocabulary.kinds))
        for entry in entries:
            number, element = _element_type(entry)
            shape = entry.info.shape
            size = prod(shape) // element.block_size * element.block_bytes
            writer.add_tensor_info(entry.name, shape, np.dtype(np.float32), size, GGMLQuantizationType(number))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:
            writer.write_tensor_data(_bytes(entry))
    finally:
        writer.close()


def _element_type(entry: TensorEntry) -> tuple[int, ElementType]:
    return _BY_NAME[entry.info.block_type or _PLAIN[entry.info.dtype.name]]


def _bytes(entry: TensorEntry) -> NDArray[np.uint8]:
    return np.ascontiguousarray(entry.read()).reshape(-1).view(np.uint8)


def _add_value(writer: GGUFWriter, key: str, value: Value) -> None:
    match value:
        case float():
            writer.add_float32(key, value)
        case int():
            writer.add_uint32(key, value)
        case _:
            writer.add_string(key, value)
