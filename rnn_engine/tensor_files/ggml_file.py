"""The element types of ggml's tensors, which llama.cpp and rwkv.cpp store, and a reader of rwkv.cpp's .bin files.

The gguf package decodes blocks to numbers; it has no function that keeps them as blocks in another order of bytes, and
no package reads rwkv.cpp's files.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import KEPT_FORMATS, Blocks, pack_codes, unpack_codes
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

# Convert GGUF's blocks to this project's own, and back: the same numbers in another order of bytes.
#
# In blocks of 32 weights, the figures come first; of 32 codes of 4 bits, the first 16 are in the lower halves of 16
# bytes. In blocks of 256, the codes of 32 or 64 weights are spread over the same bytes.

_NIBBLE_BYTES: Final = 16


def keeps_blocks(name: str) -> bool:
    """Return True if GGUF's blocks called `name` can be converted to this project's block formats and back."""
    return name in _SPLITS


def read_blocks(name: str, data: NDArray[np.uint8], shape: tuple[int, ...]) -> Blocks:
    """Convert the bytes `data` of a GGUF matrix in blocks called `name` to this project's blocks."""
    chosen = KEPT_FORMATS[name.lower()]
    num_rows, num_columns = shape
    blocks = data.reshape(num_rows, num_columns // chosen.block_columns, -1)
    figures, codes = _SPLITS[name](blocks)
    return Blocks(chosen, num_columns, codes, np.ascontiguousarray(figures).view(np.float16))


def write_blocks(blocks: Blocks) -> NDArray[np.uint8]:
    """Convert a matrix in this project's blocks to the bytes [R, bytes of a row] of a GGUF file, for R rows."""
    figures = np.ascontiguousarray(blocks.figures).view(np.uint8)
    return _JOINS[blocks.format.name.upper()](figures, blocks.codes).reshape(len(blocks), -1)


_Bytes: TypeAlias = NDArray[np.uint8]


def _split_bytes(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    return blocks[..., :2], np.ascontiguousarray(blocks[..., 2:])


def _join_bytes(figures: _Bytes, codes: _Bytes) -> _Bytes:
    return np.concatenate([figures, codes], axis=-1)


def _split_nibbles(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    return blocks[..., :-_NIBBLE_BYTES], _by_columns(blocks[..., -_NIBBLE_BYTES:])


def _join_nibbles(figures: _Bytes, codes: _Bytes) -> _Bytes:
    codes = unpack_codes(codes, 4)
    halves = codes[..., :_NIBBLE_BYTES] + np.uint8(16) * codes[..., _NIBBLE_BYTES:]
    return np.concatenate([figures, halves], axis=-1)


def _by_columns(halves: _Bytes) -> _Bytes:
    """Return the codes of blocks [..., 16 bytes] in the order of columns, from halves of both ends of a block.

    Two bytes that lie side by side have two codes of the first 16, and two of the last.
    """
    pairs = np.ascontiguousarray(halves).view("<u2")  # [..., 8]
    codes = np.empty((*halves.shape[:-1], 2), np.uint64)
    for end, shift in enumerate((0, 4)):
        own = pairs >> shift
        own &= 0x0F0F
        own |= own >> 4
        codes[..., end] = own.astype(np.uint8).view(np.uint64)[..., 0]
    return codes.view(np.uint8)


def _spread(packed: _Bytes, num_parts: int, bits: int, columns: int) -> _Bytes:
    """Return the codes [..., parts * columns] of which each byte of `packed` [..., bytes] has several.

    `columns` bytes have the codes of the first `columns` weights in their lowest `bits` bits, then of the next ones.
    """
    groups = packed.reshape(*packed.shape[:-1], -1, 1, columns)
    shifts = (np.arange(num_parts, dtype=np.uint8) * np.uint8(bits))[:, np.newaxis]
    return ((groups >> shifts) & np.uint8((1 << bits) - 1)).reshape(*packed.shape[:-1], -1)


def _gather(codes: _Bytes, num_parts: int, bits: int, columns: int) -> _Bytes:
    """Return the bytes that `_spread` reads `codes` from."""
    parts = codes.reshape(*codes.shape[:-1], -1, num_parts, columns)
    packed = np.zeros((*parts.shape[:-2], columns), np.uint8)
    for part in range(num_parts):
        packed |= parts[..., part, :] << np.uint8(bits * part)
    return packed.reshape(*codes.shape[:-1], -1)


def _split_q4_k(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    return blocks[..., :16], pack_codes(_spread(blocks[..., 16:], 2, 4, 32), 4)


def _join_q4_k(figures: _Bytes, codes: _Bytes) -> _Bytes:
    return np.concatenate([figures, _gather(unpack_codes(codes, 4), 2, 4, 32)], axis=-1)


def _split_q5_k(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    codes = _spread(blocks[..., 48:], 2, 4, 32) | _spread(blocks[..., 16:48], 8, 1, 32) << np.uint8(4)
    return blocks[..., :16], pack_codes(codes, 5)


def _join_q5_k(figures: _Bytes, codes: _Bytes) -> _Bytes:
    codes = unpack_codes(codes, 5)
    return np.concatenate(
        [figures, _gather(codes >> np.uint8(4), 8, 1, 32), _gather(codes & np.uint8(15), 2, 4, 32)], axis=-1
    )


def _split_q6_k(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    codes = _spread(blocks[..., :128], 2, 4, 64) | _spread(blocks[..., 128:192], 4, 2, 32) << np.uint8(4)
    figures = np.concatenate([blocks[..., 208:], np.zeros_like(blocks[..., 208:]), blocks[..., 192:208]], axis=-1)
    return figures, pack_codes(codes, 6)


def _join_q6_k(figures: _Bytes, codes: _Bytes) -> _Bytes:
    codes = unpack_codes(codes, 6)
    low, high = _gather(codes & np.uint8(15), 2, 4, 64), _gather(codes >> np.uint8(4), 4, 2, 32)
    return np.concatenate([low, high, figures[..., 4:], figures[..., :2]], axis=-1)


_SPLITS: Final[Mapping[str, Callable[[_Bytes], tuple[_Bytes, _Bytes]]]] = {
    "Q8_0": _split_bytes,
    "Q4_0": _split_nibbles,
    "Q4_1": _split_nibbles,
    "Q4_K": _split_q4_k,
    "Q5_K": _split_q5_k,
    "Q6_K": _split_q6_k,
}
"""GGUF's blocks -> a function from their bytes [..., bytes] to this project's bytes of figures and of codes."""

_JOINS: Final[Mapping[str, Callable[[_Bytes, _Bytes], _Bytes]]] = {
    "Q8_0": _join_bytes,
    "Q4_0": _join_nibbles,
    "Q4_1": _join_nibbles,
    "Q4_K": _join_q4_k,
    "Q5_K": _join_q5_k,
    "Q6_K": _join_q6_k,
}
"""The same -> the function for the other way."""


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
        if len(self.tensors[name].shape) != 2 or not keeps_blocks(kind):
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
