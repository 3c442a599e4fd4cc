"""Read rwkv.cpp's .bin files: a header of six integers, and then each tensor behind its own header."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.binary_file import BinaryFile, FileStamp
from rnn_engine.tensor_files.gguf_blocks import keeps_blocks, read_blocks
from rnn_engine.tensor_files.gguf_types import ELEMENT_TYPES, ElementType
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.source import TensorInfo

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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor's bytes are, and how they are stored."""

    type: ElementType
    start: int
    num_bytes: int


class GgmfFile:
    """An open file of rwkv.cpp. Closes `file` with itself. Dimensions are in numpy's order, numbers in blocks f32."""

    def __init__(self, file: BinaryFile) -> None:
        """Raises ModelError where the file is damaged, or of a version that rwkv.cpp does not read either."""
        self._file = file
        self.sizes = self._read_header()
        self._tensors: dict[str, TensorInfo] = {}
        self._places: dict[str, _Place] = {}
        position = _HEADER.size
        while position < file.stamp.size:
            if len(self._places) == _MOST_TENSORS:
                raise self._damaged(f"it has more than {_MOST_TENSORS} tensors")
            position = self._read_tensor(position)

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
        place, info = self._places[name], self._tensors[name]
        if len(info.shape) != 2 or not keeps_blocks(place.type.name):
            return None
        return read_blocks(place.type.name, self._file.read(place.start, place.num_bytes), info.shape)

    def close(self) -> None:
        self._file.close()

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
        place = self._place(name, dimensions, type_number, position + len(rest))
        return place.start + place.num_bytes

    def _place(self, name: str, dimensions: tuple[int, ...], type_number: int, start: int) -> _Place:
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
        num_bytes = prod(dimensions) // element.block_size * element.block_bytes
        if name in self._places or 0 in dimensions or dimensions[0] % element.block_size:
            raise self._damaged(
                f"tensor {show(name)} has the dimensions {list(dimensions)} in {element.name}; expected it once, each "
                f"above 0, and the first a multiple of {element.block_size}"
            )
        self._check_end(start, num_bytes, f"tensor {show(name)}")
        try:
            self._tensors[name] = TensorInfo(
                dimensions[::-1], element.dtype, element.name if element.is_block else None
            )
        except ValueError as error:
            raise self._damaged(f"tensor {show(name)}: {error}") from error
        self._places[name] = _Place(element, start, num_bytes)
        return self._places[name]

    def _take(self, start: int, size: int, what: str) -> bytes:
        self._check_end(start, size, what)
        return self._file.read(start, size).tobytes()

    def _check_end(self, start: int, size: int, what: str) -> None:
        if start + size > self._file.stamp.size:
            raise self._damaged(
                f"{what} has {size} bytes from {start} on; expected an end within the {self._file.stamp.size} bytes "
                "of the file"
            )

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self._file.path}: damaged or truncated file of rwkv.cpp: {what}")
