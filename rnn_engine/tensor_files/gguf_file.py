"""Read .gguf, the files of llama.cpp: a header, and then the tensors, each at a multiple of the alignment."""

from __future__ import annotations

from typing import Final

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import BinaryFile
from rnn_engine.tensor_files.ggml_file import GgmlFile
from rnn_engine.tensor_files.gguf_header import Metadata, StoredEntry, damaged, read_header
from rnn_engine.tensor_files.gguf_types import ELEMENT_TYPES, ElementType
from rnn_engine.tensor_files.listing import show

_ALIGNMENT_KEY: Final = "general.alignment"
_DEFAULT_ALIGNMENT: Final = 32
_MOST_ALIGNMENT: Final = 1 << 20
_PARTS_KEY: Final = "split.count"


class GgufFile(GgmlFile):
    """An open GGUF file."""

    def __init__(self, file: BinaryFile) -> None:
        """Raises ModelError where the file is damaged, or one of several parts."""
        super().__init__(file)
        header = read_header(file)
        self.metadata: Metadata = header.metadata
        if self.metadata.get(_PARTS_KEY, 1) not in (0, 1):
            raise ModelError(
                f"{file.path} is one of {show(str(self.metadata[_PARTS_KEY]))} parts of a model ({_PARTS_KEY}); "
                "expected one file, as llama-gguf-split --merge makes"
            )
        alignment = self._alignment()
        data_start = expected = _align(header.size, alignment)
        for entry in header.entries:
            start = data_start + entry.offset
            if start != expected:
                raise self._damaged(
                    f"tensor {show(entry.name)} begins at byte {entry.offset}; expected {expected - data_start}, "
                    "the end of the one before",
                )
            end = self._add(entry.name, entry.dimensions, self._element(entry), start)
            expected = _align(end, alignment)

    def _alignment(self) -> int:
        alignment = self.metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= _MOST_ALIGNMENT or alignment % 8:
            raise self._damaged(
                f"{_ALIGNMENT_KEY} is {show(str(alignment))}; expected a multiple of 8, at most {_MOST_ALIGNMENT}",
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
