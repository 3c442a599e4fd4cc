"""Read rwkv.cpp's .bin files: a header of six integers, and then each tensor behind its own header."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import BinaryFile
from rnn_engine.tensor_files.ggml_file import GgmlFile
from rnn_engine.tensor_files.gguf_types import ELEMENT_TYPES, ElementType
from rnn_engine.tensor_files.listing import show

MAGIC: Final = b"fmgg"
_HEADER: Final = struct.Struct("<4sIIIII")
_TENSOR_HEADER: Final = struct.Struct("<III")
_VERSIONS: Final = (100, 101)
_BLOCKS_SINCE: Final = 101  # those of version 100 are laid out as ggml had them before May 2023
_MOST_TENSORS: Final = 1 << 16
_MOST_DIMENSIONS: Final = 3
_MOST_NAME_BYTES: Final = 1 << 10

_BY_NAME: Final = {element.name: element for element in ELEMENT_TYPES.values()}
_TYPES: Final[Mapping[int, ElementType]] = {
    number: _BY_NAME[name]
    for number, name in (
        (0, "F32"),
        (1, "F16"),
        (2, "Q4_0"),
        (3, "Q4_1"),
        (7, "Q5_0"),
        (8, "Q5_1"),
        (9, "Q8_0"),
        (11, "Q2_K"),
        (12, "Q3_K"),
        (13, "Q4_K"),
        (14, "Q5_K"),
        (15, "Q6_K"),
    )
}
"""The number by which a file calls a type -> the type."""


class GgmfFile(GgmlFile):
    """An open file of rwkv.cpp."""

    def __init__(self, file: BinaryFile) -> None:
        """Raises ModelError where the file is damaged, or of a version that rwkv.cpp does not read either."""
        super().__init__(file)
        self.sizes = self._read_header()
        position = _HEADER.size
        while position < file.stamp.size:
            if len(self._tensors) == _MOST_TENSORS:
                raise self._damaged(f"it has more than {_MOST_TENSORS} tensors")
            position = self._read_tensor(position)

    def _read_header(self) -> Mapping[str, int]:
        """Return the sizes that the header says, by their names in a model's shape."""
        _, self._version, vocab_size, width, num_layers, _ = _HEADER.unpack(self._take(0, _HEADER.size, "its header"))
        if self._version not in _VERSIONS:
            raise ModelError(f"{self._file.path} is a file of rwkv.cpp of version {self._version}; expected 100 or 101")
        return {"vocab_size": vocab_size, "width": width, "num_layers": num_layers}

    def _read_tensor(self, position: int) -> int:
        """Take in the tensor whose header is at `position`, and return where the next one is."""
        header = self._take(position, _TENSOR_HEADER.size, "a tensor's header")
        num_dimensions, name_bytes, type_number = _TENSOR_HEADER.unpack(header)
        position += _TENSOR_HEADER.size
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS or not 1 <= name_bytes <= _MOST_NAME_BYTES:
            raise self._damaged(
                f"a tensor at byte {position} has {num_dimensions} dimensions and a name of {name_bytes} bytes; "
                f"expected at most {_MOST_DIMENSIONS} and {_MOST_NAME_BYTES}"
            )
        rest = self._take(position, 4 * num_dimensions + name_bytes, "a tensor's header")
        dimensions = struct.unpack_from(f"<{num_dimensions}I", rest)
        try:
            name = rest[4 * num_dimensions :].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"the name of the tensor at byte {position} is no UTF-8") from error
        if name in self._tensors or 0 in dimensions:
            raise self._damaged(
                f"tensor {show(name)} has the dimensions {list(dimensions)}; expected it once, and each above 0"
            )
        return self._add(name, dimensions, self._element(name, type_number), position + len(rest))

    def _element(self, name: str, type_number: int) -> ElementType:
        element = _TYPES.get(type_number)
        if element is None:
            raise ModelError(
                f"{self._file.path}: tensor {show(name)} has the type number {type_number}; expected one of "
                f"{', '.join(f'{number} ({each.name})' for number, each in _TYPES.items())}"
            )
        if element.is_block and self._version < _BLOCKS_SINCE:
            raise ModelError(
                f"{self._file.path}: tensor {show(name)} is in {element.name} of version {self._version}, which "
                f"rwkv.cpp has changed since; expected version {_BLOCKS_SINCE}: quantise the model again"
            )
        return element

    def _take(self, start: int, size: int, what: str) -> bytes:
        self._check_end(start, size, what)
        return self._file.read(start, size).tobytes()

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self._file.path}: damaged or truncated file of rwkv.cpp: {what}")
