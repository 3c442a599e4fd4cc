"""The element types of ggml's tensors, which llama.cpp and rwkv.cpp store, and a reader of rwkv.cpp's .bin files.

No package reads rwkv.cpp's files.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import Blocks
from rnn_engine.quantised.gguf_blocks import read_blocks
from rnn_engine.tensor_files.binary_file import BinaryFile
from rnn_engine.tensor_files.source import ALL_ROWS, TensorInfo, TensorSource, show, span_of_rows

# The element types of GGUF tensors: plain numbers, and blocks of consecutive weights of a row with their scales.


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


@dataclass(frozen=True, slots=True)
class _TensorPlace:
    """The position of a tensor's bytes in a file, and the element type in which they are stored."""

    type: ElementType
    start: int
    num_bytes: int


class GgmlFile(TensorSource):
    """Base class of open GGUF and rwkv.cpp files: reads tensors whose positions the subclass has found.

    Dimensions are in numpy's order, the fastest last. Numbers in blocks are read as f32. `close` closes `file`.
    """

    def __init__(self, file: BinaryFile) -> None:
        super().__init__(file)
        self.tensors: dict[str, TensorInfo] = {}
        self._places: dict[str, _TensorPlace] = {}

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

    @abstractmethod
    def _damaged(self, what: str) -> ModelError:
        """Return the error for a damaged file, which names the kind of file; `what` is the reason."""


# Read rwkv.cpp's .bin files: a header of six integers, and then the tensors, each after its own header.

MAGIC: Final = b"fmgg"
_HEADER: Final = struct.Struct("<4sIIIII")
_TENSOR_HEADER: Final = struct.Struct("<III")
_VERSIONS: Final = (100, 101)
_BLOCKS_SINCE: Final = 101  # version 100 has the block layout of ggml before May 2023
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
"""The number that an rwkv.cpp file gives for an element type -> the type."""


class GgmfFile(GgmlFile):
    """An open .bin file of rwkv.cpp, from which tensors are read."""

    def __init__(self, file: BinaryFile) -> None:
        """Read the headers of the file and of all its tensors.

        Raises ModelError if the file is damaged, or of a version that rwkv.cpp does not read either.
        """
        super().__init__(file)
        self.sizes = self._read_header()
        position = _HEADER.size
        while position < file.stamp.size:
            if len(self.tensors) == _MOST_TENSORS:
                raise self._damaged(f"it has more than {_MOST_TENSORS} tensors")
            position = self._read_tensor(position)

    def _read_header(self) -> Mapping[str, int]:
        """Return the model's sizes in the file's header, by their names in `ModelShape`."""
        _, self._version, vocab_size, width, num_layers, _ = _HEADER.unpack(self._take(0, _HEADER.size, "its header"))
        if self._version not in _VERSIONS:
            raise ModelError(f"{self._file.path} is a file of rwkv.cpp of version {self._version}; expected 100 or 101")
        return {"vocab_size": vocab_size, "width": width, "num_layers": num_layers}

    def _read_tensor(self, position: int) -> int:
        """Record the tensor whose header is at byte `position` of the file; return the position after the tensor."""
        header = self._take(position, _TENSOR_HEADER.size, "a tensor's header")
        num_dimensions, name_bytes, type_number = _TENSOR_HEADER.unpack(header)
        position += _TENSOR_HEADER.size
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS or not 1 <= name_bytes <= _MOST_NAME_BYTES:
            raise self._damaged(
                f"a tensor at byte {position} has {num_dimensions} dimensions and a name of {name_bytes} bytes; "
                f"expected 1 to {_MOST_DIMENSIONS} and 1 to {_MOST_NAME_BYTES}"
            )
        rest = self._take(position, 4 * num_dimensions + name_bytes, "a tensor's header")
        dimensions = struct.unpack_from(f"<{num_dimensions}I", rest)
        try:
            name = rest[4 * num_dimensions :].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged(f"the name of the tensor at byte {position} is not valid UTF-8") from error
        if name in self.tensors or 0 in dimensions:
            raise self._damaged(
                f"tensor {show(name)} has the dimensions {list(dimensions)}; expected only one such tensor, and "
                "dimensions above 0"
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
                f"{self._file.path}: tensor {show(name)} is in {element.name} of version {self._version}, and "
                f"rwkv.cpp has changed this type since; expected version {_BLOCKS_SINCE}: quantise the model again"
            )
        return element

    def _take(self, start: int, size: int, what: str) -> bytes:
        self._check_end(start, size, what)
        return self._file.read(start, size).tobytes()

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self._file.path}: damaged or truncated file of rwkv.cpp: {what}")
