"""Read .gguf, the files of llama.cpp: a header, and then the tensors, each at a multiple of the alignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.binary_file import BinaryFile, FileStamp
from rnn_engine.tensor_files.gguf_blocks import keeps_blocks, read_blocks
from rnn_engine.tensor_files.gguf_header import Metadata, StoredEntry, damaged, read_header
from rnn_engine.tensor_files.gguf_types import ELEMENT_TYPES, ElementType
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.source import TensorInfo

_ALIGNMENT_KEY: Final = "general.alignment"
_DEFAULT_ALIGNMENT: Final = 32
_MOST_ALIGNMENT: Final = 1 << 20
_PARTS_KEY: Final = "split.count"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor's bytes are, and how they are stored."""

    type: ElementType
    start: int
    num_bytes: int


class GgufFile:
    """An open GGUF file. Closes `file` with itself. Tensors have their dimensions in numpy's order, the fastest last.

    Numbers in blocks are read as f32.
    """

    def __init__(self, file: BinaryFile) -> None:
        """Raises ModelError where the file is damaged, or one of several parts."""
        self._file = file
        header = read_header(file)
        self.metadata: Metadata = header.metadata
        if self.metadata.get(_PARTS_KEY, 1) not in (0, 1):
            raise ModelError(
                f"{file.path} is one of {show(str(self.metadata[_PARTS_KEY]))} parts of a model ({_PARTS_KEY}); "
                "expected one file, as llama-gguf-split --merge makes"
            )
        self._tensors: dict[str, TensorInfo] = {}
        self._places: dict[str, _Place] = {}
        alignment = self._alignment()
        data_start = expected = _align(header.size, alignment)
        for entry in header.entries:
            start = data_start + entry.offset
            if start != expected:
                raise damaged(
                    file,
                    f"tensor {show(entry.name)} begins at byte {entry.offset}; expected {expected - data_start}, "
                    "the end of the one before",
                )
            place = self._add(entry, start)
            expected = _align(start + place.num_bytes, alignment)

    @property
    def stamp(self) -> FileStamp:
        return self._file.stamp

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> NDArray[Any]:
        place = self._places[name]
        return place.type.decode(self._file.read(place.start, place.num_bytes), self._tensors[name].shape)

    def read_blocks(self, name: str) -> Blocks | None:
        info, place = self._tensors[name], self._places[name]
        if len(info.shape) != 2 or not keeps_blocks(place.type.name):
            return None
        return read_blocks(place.type.name, self._file.read(place.start, place.num_bytes), info.shape)

    def close(self) -> None:
        self._file.close()

    def _alignment(self) -> int:
        alignment = self.metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= _MOST_ALIGNMENT or alignment % 8:
            raise damaged(
                self._file,
                f"{_ALIGNMENT_KEY} is {show(str(alignment))}; expected a multiple of 8, at most {_MOST_ALIGNMENT}",
            )
        return alignment

    def _add(self, entry: StoredEntry, start: int) -> _Place:
        """Take in a tensor that begins at byte `start` of the file. Raises ModelError where it can't be there."""
        element = ELEMENT_TYPES.get(entry.type_number)
        if element is None:
            names = ", ".join(each.name for each in ELEMENT_TYPES.values())
            raise ModelError(
                f"{self._file.path}: tensor {show(entry.name)} has the GGUF type number {entry.type_number}; "
                f"expected one of {names}"
            )
        if entry.dimensions[0] % element.block_size:
            raise damaged(
                self._file,
                f"tensor {show(entry.name)} has rows of {entry.dimensions[0]} numbers; expected a multiple of "
                f"{element.block_size} for {element.name}",
            )
        num_bytes = prod(entry.dimensions) // element.block_size * element.block_bytes
        if start + num_bytes > self._file.stamp.size:
            raise damaged(
                self._file,
                f"tensor {show(entry.name)} has {num_bytes} bytes from {start} on; expected an end within the "
                f"{self._file.stamp.size} bytes of the file",
            )
        try:
            info = TensorInfo(entry.dimensions[::-1], element.dtype, element.name if element.is_block else None)
        except ValueError as error:
            raise damaged(self._file, f"tensor {show(entry.name)}: {error}") from error
        place = _Place(element, start, num_bytes)
        self._tensors[entry.name], self._places[entry.name] = info, place
        return place


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
