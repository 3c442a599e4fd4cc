"""Read ai00's prefab models, which are web-rwkv's structures as CBOR, with its tensor names and quantised matrices.

Tensors are returned under BlinkDL's names and in its orientation. web-rwkv halves the matrices that write to the
residual once more after every `rescale` layers; here they are scaled back. RWKV-4 and RWKV-5 models hold the decay
itself; here it is converted back to the number from which the model computes it. Rows that pad the embedding and the
head to a multiple of 8 are cut off.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import (
    BLOCK_FORMATS,
    NF4_LEVELS,
    SF4_LEVELS,
    BlockFormat,
    Blocks,
    blocks_of_row,
    bytes_of_codes,
)
from rnn_engine.quantised.blocks import F32
from rnn_engine.tensor_files.source import ALL_ROWS, ByteSource, TensorInfo, TensorSource

# A parser of CBOR, with the positions of byte strings in place of their bytes.
#
# The cbor2 package does not do here: it reads all byte strings into memory, and a small file can make it build any
# number of items.

_MOST_ITEMS: Final = 1 << 18
_MOST_DEPTH: Final = 16
_MOST_TEXT: Final = 1 << 12  # bytes
_SIMPLE: Final = {20: False, 21: True, 22: None, 23: None}
_FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}
_LONGEST_NUMBER: Final = 27  # what is above stands for an unknown length
_TAG, _OTHER = 6, 7  # major types


@dataclass(frozen=True, slots=True)
class ByteString:
    """The position and size of a byte string in a CBOR file."""

    start: int
    size: int


def read_items(file: ByteSource, most_items: int = _MOST_ITEMS) -> Any:  # noqa: ANN401
    """Parse a CBOR file of one item, and return it as numbers, texts, None, lists, dicts and `ByteString`s.

    Raises ModelError if it is damaged, or holds more than `most_items` or other kinds of items.
    """
    reader = _CborReader(file, most_items)
    item = reader.read(0)
    if reader.position != file.stamp.size:
        reader.refuse(f"its content ends at byte {reader.position} of {file.stamp.size}")
    return item


class _CborReader:
    def __init__(self, file: ByteSource, most_items: int) -> None:
        self._file = file
        self._most_items = most_items
        self._num_items = 0
        self.position = 0

    def read(self, depth: int) -> Any:  # noqa: ANN401
        self._num_items += 1
        if self._num_items > self._most_items or depth > _MOST_DEPTH:
            self.refuse(f"it has more than {self._most_items} items, or they lie more than {_MOST_DEPTH} deep")
        kind, value = self._read_head()
        match kind:
            case 1:
                return -1 - value
            case 2:
                return self._skip(value)
            case 3:
                return self._read_text(value)
            case 4:
                return [self.read(depth + 1) for _ in range(self._count(value))]
            case 5:
                return dict(self._read_entry(depth + 1) for _ in range(self._count(value)))
        return value

    def refuse(self, what: str) -> NoReturn:
        raise ModelError(f"{self._file.path}: damaged or truncated CBOR file: {what}")

    def _read_text(self, size: int) -> str:
        if size > _MOST_TEXT:
            self.refuse(f"it has a text of {size} bytes; expected at most {_MOST_TEXT}")
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            self.refuse(f"the text before byte {self.position} is no UTF-8")

    def _read_entry(self, depth: int) -> tuple[str | int, Any]:
        key = self.read(depth)
        if not isinstance(key, str | int):
            self.refuse("a key is neither a text nor a number")
        return key, self.read(depth)

    def _read_head(self) -> tuple[int, Any]:
        """Read the beginning of a CBOR item; return its major type and its number, or for type 7 the value itself."""
        kind, short = divmod(self._take(1)[0], 32)
        if kind == _OTHER and short in _SIMPLE:
            return kind, _SIMPLE[short]
        if kind == _TAG or short > _LONGEST_NUMBER or (kind == _OTHER and short not in _FLOATS):
            self.refuse(f"byte {self.position - 1} begins no number, text, byte string, list or map of known length")
        if short < 24:
            return kind, short
        number = self._take(1 << (short - 24))
        return kind, struct.unpack(_FLOATS[short], number)[0] if kind == _OTHER else int.from_bytes(number, "big")

    def _take(self, size: int) -> bytes:
        span = self._skip(size)
        return self._file.read(span.start, size).tobytes()

    def _skip(self, size: int) -> ByteString:
        span = ByteString(self.position, size)
        if span.start + size > self._file.stamp.size:
            self.refuse(f"{size} bytes from {span.start} on; expected an end within its {self._file.stamp.size} bytes")
        self.position += size
        return span

    def _count(self, value: int) -> int:
        if value > self._file.stamp.size - self.position:
            self.refuse(f"a list of {value} items at byte {self.position}")
        return value


PREFAB_START: Final = b"\xa5\x67context"
MATRICES: Final = {"w_r": "receptance", "w_k": "key", "w_v": "value", "w_g": "gate", "w_o": "output"}
"""web-rwkv's name of a layer's matrix -> BlinkDL's name."""

V6_MIXES: Final = "wkvrg"
_HALVED: Final = {("att", "w_o"), ("ffn", "w_v")}
_SWAPPED: Final = frozenset(
    ("time_mix_w1", "time_mix_w2", "time_decay_w1", "time_decay_w2", *(f"{kind}{n}" for kind in "wavg" for n in "12"))
)
_KINDS: Final = ("Fp16", "Int8", "Fp4")
_VERSIONS: Final = ("V4", "V5", "V6", "V7")
_MOST_HALVINGS: Final = 64
_CODEBOOKS: Final = {"nf4": NF4_LEVELS, "sf4": SF4_LEVELS}

Transform = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _PrefabPart:
    """An array in a prefab file: its shape in numpy's order, and the position of its bytes."""

    shape: tuple[int, ...]
    data: ByteString

    def dtype(self, *allowed: Any) -> np.dtype[Any]:  # noqa: ANN401
        """Return the first of the types `allowed` with which the shape fits the bytes. Raises ValueError for none."""
        for dtype in map(np.dtype, allowed):
            if prod(self.shape) * dtype.itemsize == self.data.size:
                return dtype
        raise ValueError(f"an array of shape {list(self.shape)} has {self.data.size} bytes")


@dataclass(frozen=True, slots=True)
class _Tensor:
    """How to read a tensor of a prefab file: from an array of numbers, or from arrays of quantised codes and scales."""

    values: _PrefabPart
    info: TensorInfo  # of the result
    figures: _PrefabPart | None = None
    format: BlockFormat | None = None
    transform: Transform = lambda array: array
    scale: float = 1.0


class PrefabFile(TensorSource):
    """An open prefab file, from which tensors are read. `close` closes `file`."""

    def __init__(self, file: ByteSource) -> None:
        """Find all tensors in the file. Raises ModelError if the file is damaged."""
        super().__init__(file)
        content = read_items(file)
        try:
            self._stored = dict(_Layout(file, content).tensors())
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ModelError(f"{file.path}: damaged prefab model: {type(error).__name__}: {error}") from error
        self.tensors = {name: stored.info for name, stored in self._stored.items()}

    def reads_rows(self, name: str) -> bool:  # noqa: ARG002
        return False

    def read(self, name: str, rows: slice = ALL_ROWS) -> NDArray[Any]:
        return self._read(name)[rows]

    def _read(self, name: str) -> NDArray[Any]:
        stored = self._stored[name]
        if stored.format is not None:
            numbers = self._blocks(stored, 1, prod(stored.info.shape)).numbers().reshape(stored.info.shape)
        else:
            array = _read(self._file, stored.values, stored.values.dtype(np.float16, np.float32))
            numbers = stored.transform(array.reshape(stored.values.shape))
        return numbers if stored.scale == 1 else (numbers * numbers.dtype.type(stored.scale)).astype(numbers.dtype)

    def read_blocks(self, name: str, rows: slice = ALL_ROWS) -> Blocks | None:
        stored = self._stored[name]
        if stored.format is None or stored.info.block_type is None:
            return None
        blocks = self._blocks(stored, *stored.info.shape)
        scaled = blocks if stored.scale == 1 else blocks.scaled(stored.scale)
        return scaled and scaled[rows]

    def _blocks(self, stored: _Tensor, num_rows: int, num_columns: int) -> Blocks:
        assert stored.format is not None
        assert stored.figures is not None
        count = blocks_of_row(num_columns, stored.format.block_columns)
        codes = np.zeros(num_rows * count * bytes_of_codes(stored.format), np.uint8)
        found = _read(self._file, stored.values, np.dtype(np.uint8))
        codes[: len(found)] = found
        figures = _read(self._file, stored.figures, np.dtype(np.float16))
        shape = (num_rows, count, -1)
        return Blocks(stored.format, num_columns, codes.reshape(shape), figures.reshape(shape))


class _Layout:
    """Finds the tensors in the parsed CBOR content of a prefab file.

    Its methods raise KeyError, TypeError or ValueError if the file has another structure.
    """

    def __init__(self, file: ByteSource, content: dict[str, Any]) -> None:
        self._file = file
        self._content = content["tensor"]
        info = content["info"]
        self._version = _choice(info["version"], _VERSIONS)
        self._sizes = info["num_vocab"], info["num_emb"]
        self._num_heads = info["num_head"]
        self._rescale = content["rescale"]
        if not all(type(size) is int and size > 0 for size in (*self._sizes, self._num_heads, self._rescale)):
            raise ValueError("a size is not a number of at least 1")

    def tensors(self) -> Iterator[tuple[str, _Tensor]]:
        """Yield BlinkDL's name of every tensor in the file, and how to read it."""
        embed, head = self._content["embed"], self._content["head"]
        yield "emb.weight", self._cut(_plain(_part(embed["w"])))
        yield "head.weight", self._cut(self._matrix(head["w"]))
        yield from self._norm("blocks.0.ln0", _either(embed, "ln", "layer_norm"))
        yield from self._norm("ln_out", _either(head, "ln", "layer_norm"))
        for number, layer in enumerate(self._content["layers"]):
            yield from self._norm(f"blocks.{number}.ln1", _either(layer, "att_ln", "att_layer_norm"))
            yield from self._norm(f"blocks.{number}.ln2", _either(layer, "ffn_ln", "ffn_layer_norm"))
            for part in ("att", "ffn"):
                for field, value in layer[part].items():
                    yield from self._field(number, part, field, value)

    def _field(self, number: int, part: str, field: str, value: Any) -> Iterator[tuple[str, _Tensor]]:  # noqa: ANN401
        prefix = f"blocks.{number}.{part}."
        if field in MATRICES:
            matrix = self._matrix(value)
            halvings = number // self._rescale if (part, field) in _HALVED else 0
            if halvings > _MOST_HALVINGS:
                raise ValueError(f"layer {number} is halved {halvings} times; expected at most {_MOST_HALVINGS}")
            yield f"{prefix}{MATRICES[field]}.weight", replace(matrix, scale=2.0**halvings)
        elif field in ("gn", "group_norm"):
            yield from self._norm(f"{prefix}ln_x", value)
        elif field == "time_mix":
            yield from self._stacked(prefix, _part(value))
        elif not (self._version == "V7" and number == 0 and field in ("v0", "v1", "v2")):  # unused
            yield prefix + self._name(field), self._small(field, value)

    def _name(self, field: str) -> str:
        if self._version == "V6":
            field = field.replace("time_mix", "time_maa")
        return "time_faaaa" if field == "time_first" and self._version in ("V5", "V6") else field

    def _small(self, field: str, value: Any) -> _Tensor:  # noqa: ANN401
        """Return how to read a field of a layer that is a vector or a low-rank matrix."""
        if field in _SWAPPED:
            part = self._matrix(value).values
            *leading, rows, columns = part.shape
            return _plain(part, (*leading, columns, rows), lambda array: array.swapaxes(-1, -2))
        part = _part(value)
        if field == "time_decay" and self._version in ("V4", "V5"):
            shape = part.shape if self._version == "V4" else self._by_heads(part)
            return _plain(part, shape, lambda array: _find_decay(array, self._version).reshape(shape))
        if field == "r_k" or (field == "time_first" and self._version != "V4"):
            shape = self._by_heads(part)
            return _plain(part, shape, lambda array: array.reshape(shape))
        return _plain(part)

    def _by_heads(self, part: _PrefabPart) -> tuple[int, int]:
        return self._num_heads, prod(part.shape) // self._num_heads

    def _stacked(self, prefix: str, part: _PrefabPart) -> Iterator[tuple[str, _Tensor]]:
        """Yield each of an RWKV-6 layer's token shift mixes, which one array stores: its name, and how to read it."""
        size = prod(part.shape) // len(V6_MIXES)

        def pick(index: int) -> Transform:
            return lambda array: array.reshape(len(V6_MIXES), size)[index]

        for index, kind in enumerate(V6_MIXES):
            yield f"{prefix}time_maa_{kind}", _plain(part, (size,), pick(index))

    def _norm(self, name: str, value: Any) -> Iterator[tuple[str, _Tensor]]:  # noqa: ANN401
        for field, kind in (("w", "weight"), ("b", "bias")):
            part = _part(value[field])
            yield f"{name}.{kind}", _plain(part, (prod(part.shape),), lambda array: array.reshape(-1))

    def _cut(self, tensor: _Tensor) -> _Tensor:
        """Return how to read the embedding or the head without the rows and columns that pad it."""
        num_rows, num_columns = self._sizes
        if tensor.info.shape == self._sizes:
            return tensor
        if tensor.format is not None or len(tensor.info.shape) != 2:
            raise ValueError(f"the embedding or the head is {list(tensor.info.shape)}; expected {list(self._sizes)}")
        shape = tuple(np.minimum(tensor.info.shape, self._sizes).tolist())
        return _plain(tensor.values, shape, lambda array: array[:num_rows, :num_columns])

    def _matrix(self, value: Any) -> _Tensor:  # noqa: ANN401
        ((kind, content),) = value.items()
        kind = _choice(kind, _KINDS)
        if kind == "Fp16":
            return _plain(_part(content))
        codes, figures = _part(content["w"]), _part(content["m"])
        chosen = BLOCK_FORMATS["int8"] if kind == "Int8" else self._codebook(_part(content["q"]))
        codes.dtype(np.uint8)
        figures.dtype(np.float16)
        *leading, bytes_of_row = codes.shape
        shape = (*leading, bytes_of_row * 8 // chosen.code_bits)
        if prod(figures.shape) != blocks_of_row(prod(shape), chosen.block_columns) * chosen.num_figures:
            raise ValueError(f"a matrix of shape {list(shape)} has {prod(figures.shape)} figures")
        whole = len(shape) == 2 and shape[1] % chosen.block_columns == 0 and chosen.name in BLOCK_FORMATS
        info = TensorInfo(shape, np.dtype(np.float32), chosen.name if whole else None)
        return _Tensor(codes, info, figures, chosen)

    def _codebook(self, part: _PrefabPart) -> BlockFormat:
        """Return the 4-bit format that has the 16 levels in the array `part`. Raises ValueError for unknown levels."""
        levels = _read(self._file, part, part.dtype(np.float32))
        for name, known in _CODEBOOKS.items():
            if levels.shape == (16,) and np.allclose(levels, known, atol=1e-4):
                return BLOCK_FORMATS[name]
        raise ValueError(f"a matrix has the levels {levels[:16].tolist()}; expected those of NF4 or SF4")


def _part(value: dict[str, Any]) -> _PrefabPart:
    shape, data = value["shape"], value["data"]
    if not isinstance(data, ByteString) or len(shape) != 4 or not all(type(n) is int and n > 0 for n in shape):
        raise ValueError("an array has no shape of 4 sizes, or no bytes")
    turned = tuple(reversed(shape))
    while len(turned) > 1 and turned[0] == 1:
        turned = turned[1:]
    return _PrefabPart(turned, data)


def _plain(
    part: _PrefabPart, shape: tuple[int, ...] | None = None, transform: Transform = lambda array: array
) -> _Tensor:
    dtype = part.dtype(np.float16, np.float32)
    return _Tensor(part, TensorInfo(part.shape if shape is None else shape, dtype), transform=transform)


def _read(file: ByteSource, part: _PrefabPart, dtype: np.dtype[Any]) -> NDArray[Any]:
    return file.read(part.data.start, part.data.size).view(dtype)


def _either(value: dict[str, Any], first: str, second: str) -> Any:  # noqa: ANN401
    return value[first] if first in value else value[second]


def _choice(value: object, names: tuple[str, ...]) -> str:
    """Return the one of `names` that `value` means, as a name or as an index. Raises ValueError for another name."""
    if isinstance(value, int) and value >= 0:
        return names[value]
    if value not in names:
        raise ValueError(f"{value!r} is not one of {', '.join(names)}")
    return str(value)


def _find_decay(used: F32, version: str) -> F32:
    """Convert a layer's decay as web-rwkv stores it, -exp(x) for RWKV-4 and exp(-exp(x)) for RWKV-5, back to x.

    Returned are numbers that half precision holds, as ai00 had them, if they give the stored decay again: these are
    without the error of a logarithm.
    """
    least = float(np.finfo(np.float32).tiny)
    wide = used.astype(np.float64)
    rate = -wide if version == "V4" else -np.log(np.maximum(wide, least))
    exact = np.log(np.maximum(rate, least)).astype(np.float32)
    halves = exact.astype(np.float16).astype(np.float32)
    again = -np.exp(halves) if version == "V4" else np.exp(-np.exp(halves))
    return np.where(np.isclose(again, used, rtol=1e-6, atol=0), halves, exact)
