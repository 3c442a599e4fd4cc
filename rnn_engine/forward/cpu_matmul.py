"""Matmuls on the processor with onnxruntime, whose kernels multiply weights of 8 and 4 bits in bytes.

Each matrix is a session of its own. Its graph is one matmul, which holds the weights in the order of the kernels. The
products of a row have the same bits whatever other rows are multiplied with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
import psutil
from numpy.typing import NDArray

from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.forward.weight_formats import QuantisedFormat
from rnn_engine.quantised import Blocks, pack_codes, quantise_rows, unpack_codes
from rnn_engine.quantised.rows import Matrix, read_rows
from rnn_engine.reference import Array, Weights
from rnn_engine.reference.threads import SMALL_WIDTH
from rnn_engine.types import F32, MatrixPlace, Model, ModelShape

if TYPE_CHECKING:
    import onnxruntime

MatMul: TypeAlias = Callable[[F32], F32]
"""A function from x [T, in] to its product [T, out] with a matrix."""

Convert: TypeAlias = Callable[[NDArray[Any] | Blocks], NDArray[Any] | Blocks]
"""A function from rows of a matrix, as a file stores them, to the same rows in another format."""

_PIECE_WEIGHTS: Final = 1 << 24  # of a matrix in a session; a session's weights are copied while it is created
_SHARED_WEIGHTS: Final = 1 << 20  # of a matrix whose rows are divided among threads
_SHARED_PRODUCTS: Final = 1 << 22  # of weights and rows of inputs, below which one thread is as fast
_LEVELS: Final = ("nf4", "sf4", "iq4_nl", "iq4_xs")  # formats whose weights are not multiples of a step
_PART_COLUMNS: Final = {"q2_k": 16, "q3_k": 16, "q6_k": 16, "q4_k": 32, "q5_k": 32}  # that share a scale in a block


class Threads:
    """Threads that share the matmuls of a model."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool = ThreadPoolExecutor(count)  # it has no thread before it is used


def has_matmuls() -> bool:
    """Return True if onnxruntime is installed."""
    return find_spec("onnxruntime") is not None


def count_threads(shape: ModelShape, wanted: int | None) -> int:
    """Return how many threads multiply: `wanted`, or else the physical cores, but one for a small model."""
    if shape.width <= SMALL_WIDTH:
        return 1
    cores = psutil.cpu_count(logical=False) or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return wanted or max(1, min(cores, allowed))


class MatMulWeights(Weights):
    """A model's tensors, of which matrices are held by onnxruntime alone, in 8 or 4 bits or in f32."""

    def __init__(
        self, shape: ModelShape, fetch: Callable[[str], Array | Blocks], matmuls: dict[str, MatMul], threads: Threads
    ) -> None:
        super().__init__(shape, fetch)
        self._matmuls = matmuls
        self._projections: dict[str, list[MatMul]] = {}
        self._threads = threads

    @classmethod
    def load(cls, model: Model, format_of: FormatOf, *, in_bytes: bool, num_threads: int) -> Self:
        """Read all tensors of `model`, which may then be closed, with `num_threads` threads.

        Matrices whose format, by `format_of`, has blocks of 8 bits or less are kept in them and multiplied with inputs
        that are rounded to bytes, if `in_bytes`. All others are f32.
        """
        tensors: dict[str, Array | Blocks] = {}
        matmuls: dict[str, MatMul] = {}
        threads = Threads(num_threads)

        def load_one(name: str) -> None:
            matrix, convert = model.matrix(name), partial(_convert, format_of(name))
            if _is_multiplied(model.shape, name, matrix.shape):
                matmuls[name] = _make_matmul(matrix, convert, threads, in_bytes=in_bytes)
            else:
                tensor = convert(read_rows(matrix)) if len(matrix.shape) == 2 else read_rows(matrix)
                tensors[name] = tensor if isinstance(tensor, Blocks) else np.ascontiguousarray(tensor)

        for _ in threads.pool.map(load_one, model.names):
            pass
        return cls(model.shape, tensors.__getitem__, matmuls, threads)

    def matmul(self, x: Array, name: str) -> Array:
        return self._matmuls[name](x)

    def project(self, x: Array, name: str) -> Array:
        if name not in self._projections:
            stack = np.atleast_3d(self(name).T).T  # [B, in, out]
            self._projections[name] = [
                _make_matmul(matrix.T, lambda rows: rows, self._threads, in_bytes=False) for matrix in stack
            ]
        matmuls = self._projections[name]
        inputs = x.reshape(len(matmuls), -1, x.shape[-1])
        products = [multiply(each) for multiply, each in zip(matmuls, inputs, strict=True)]
        return np.stack(products) if x.ndim == 3 else products[0]


def _is_multiplied(shape: ModelShape, name: str, size: Sequence[int]) -> bool:
    """Return True if `name` is a matrix [out, in], not a table of vectors for tokens or one of another part."""
    place: MatrixPlace = shape.place_of(name)
    if place.layer is None:
        return name == shape.tensor_names.head and shape.has_head
    return len(size) == 2 and place.part in ("att", "ffn") and size[0] != shape.vocab_size


def _convert(wanted: object, rows: NDArray[Any] | Blocks) -> NDArray[Any] | Blocks:
    """Return rows of a matrix in the format `wanted`: as blocks or as their floats; for None, as the file has them."""
    if wanted is None:
        return rows
    if not isinstance(wanted, QuantisedFormat):
        return _floats(rows)
    same = isinstance(rows, Blocks) and rows.format == wanted.blocks
    return rows if same else quantise_rows(wanted.blocks, _floats(rows))


def _floats(rows: NDArray[Any] | Blocks) -> NDArray[Any]:
    return rows.numbers() if isinstance(rows, Blocks) else rows


def _make_matmul(matrix: Matrix, convert: Convert, threads: Threads, *, in_bytes: bool) -> MatMul:
    """Return the matmul by a matrix [out, in], which is read, converted and multiplied in pieces of its rows."""
    num_rows, num_columns = matrix.shape
    step = max(1, _PIECE_WEIGHTS // num_columns)
    if num_rows * num_columns >= _SHARED_WEIGHTS:
        step = min(step, -(-num_rows // threads.count))
    runs, num_parts, multiple = [], 0, 1
    for start in range(0, num_rows, step):
        rows = convert(read_rows(matrix[start : start + step]))
        codes = Codes.of(rows) if in_bytes and isinstance(rows, Blocks) else None
        if codes is None:
            runs.append(_start(_graph_of_floats(_floats(rows))).run)
        else:
            runs.append(_start(codes.graph()).run)
            multiple = _multiple_of_rows(codes.bits, codes.part)
            num_parts = 0 if codes.offsets is None else codes.scales.shape[1]

    def multiply(x: F32) -> F32:
        count = len(x)
        if not count:
            return np.empty((0, num_rows), np.float32)
        if surplus := -count % multiple:
            x = np.pad(x, ((0, surplus), (0, 0)))
        inputs = {"x": x}
        if num_parts:
            inputs["sums"] = x.reshape(len(x), num_parts, -1).sum(axis=-1)
        if len(runs) == 1:
            product: F32 = runs[0](None, inputs)[0]
            return product[:count]
        run_all = threads.pool.map if len(x) * num_rows * num_columns >= _SHARED_PRODUCTS else map
        return np.concatenate([found[0] for found in run_all(lambda run: run(None, inputs), runs)], axis=-1)[:count]

    return multiply


@cache
def _multiple_of_rows(bits: int, part: int) -> int:
    """Return the least multiple of rows with which the product of a row has the same bits in any number of rows.

    Kernels multiply 2 or 4 rows at a time. For the rows that are left over, they may add up in another order.
    """
    generator = np.random.default_rng(1)
    shape = (67, 4 * max(part // 16, 4), part * bits // 8)  # [R, P, bytes]
    scales = generator.random(shape[:2], np.float32)
    run = _start(Codes(bits, generator.integers(0, 256, shape, np.uint8), scales, None).graph()).run
    x = generator.standard_normal((16, shape[1] * part), np.float32)
    whole = run(None, {"x": x})[0]
    for multiple in (1, 2, 4, 8):
        counts = range(multiple, len(x), multiple)
        if all(np.array_equal(run(None, {"x": x[:count]})[0], whole[:count]) for count in counts):
            return multiple
    return len(x)


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantised matrix [R, C] as onnxruntime's MatMulNBits reads it, with an offset for each part that has one.

    A weight is scale * (code - middle) + offset, and middle is 8 or 128. P parts of a row share scale and offset.
    """

    bits: int  # 4 or 8
    codes: NDArray[np.uint8]  # [R, P, bytes]
    scales: F32  # [R, P]
    offsets: F32 | None  # [R, P]; None if the format has none

    @classmethod
    def of(cls, blocks: Blocks) -> Codes | None:
        """Return the same weights, up to the rounding of f32; None if there is no such form or a row ends in a block.

        Codes of 2 and 3 bits take 4, those of 5 and 6 take 8.
        """
        kind = blocks.format
        if kind.name in _LEVELS or blocks.num_columns % kind.block_columns:
            return None
        num_parts = kind.block_columns // _PART_COLUMNS.get(kind.name, kind.block_columns)
        bits, sign = 4 if kind.code_bits <= 4 else 8, 0x80 if kind.name == "q8_0" else 0
        middle, greatest = 1 << (kind.code_bits - 1), (1 << kind.code_bits) - 1

        def weights_of(code: int) -> F32:
            codes = np.full((*blocks.codes.shape[:2], num_parts), code ^ sign, np.uint8)
            return kind.dequantise(codes, blocks.figures).reshape(len(blocks), -1)

        with np.errstate(all="ignore"):  # the figures of a damaged file may be anything
            offsets = weights_of(middle)
            scales = (weights_of(greatest) - offsets) / np.float32(greatest - middle)
        codes = blocks.codes
        if kind.code_bits != bits:
            shifted = unpack_codes(codes, kind.code_bits) + np.uint8((1 << (bits - 1)) - middle)
            codes = pack_codes(shifted, bits)
        elif sign:
            codes = codes ^ np.uint8(sign)
        return cls(bits, codes.reshape(*scales.shape, -1), scales, offsets if kind.num_scales == 2 else None)

    @property
    def part(self) -> int:
        """The number of weights that share a scale."""
        return int(self.codes.shape[-1]) * 8 // self.bits

    def graph(self) -> bytes:
        num_rows, num_parts, _ = self.codes.shape
        part = self.part
        sizes = {"K": num_parts * part, "N": num_rows, "bits": self.bits, "block_size": part, "accuracy_level": 4}
        constants: dict[str, NDArray[Any]] = {"codes": self.codes, "scales": self.scales}
        nodes = [_node("MatMulNBits", ("x", *constants), "y" if self.offsets is None else "product", **sizes)]
        inputs = {"x": num_parts * part}
        if self.offsets is not None:
            nodes.append(_node("Gemm", ("sums", "offsets", "product"), "y", transB=1))
            inputs["sums"], constants["offsets"] = num_parts, self.offsets
        return _graph(nodes, constants, inputs, num_rows)


def _graph_of_floats(matrix: NDArray[Any]) -> bytes:
    constants = {"weights": np.ascontiguousarray(matrix, np.float32)}
    return _graph([_node("Gemm", ("x", "weights"), "y", transB=1)], constants, {"x": matrix.shape[1]}, len(matrix))


def _start(graph: bytes) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1  # threads divide a matrix by rows; see `_make_matmul`
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    session._model_bytes = None  # else it would keep the weights twice
    return session


# A model in ONNX's protocol buffers: fields with their numbers in onnx.proto.

_TYPES: Final[Mapping[str, int]] = {"float32": 1, "uint8": 2}
_INT: Final = 2
_MICROSOFT: Final = "com.microsoft"


def _graph(
    nodes: Sequence[bytes], constants: Mapping[str, NDArray[Any]], inputs: Mapping[str, int], num_outputs: int
) -> bytes:
    """Return a model from `inputs` [T, their numbers] to y [T, num_outputs]."""
    graph = [_field(1, node) for node in nodes]
    graph.append(_field(2, "matmul"))
    graph += [_field(5, _tensor(name, array)) for name, array in constants.items()]
    graph += [_field(11, _value(name, size)) for name, size in inputs.items()]
    graph.append(_field(12, _value("y", num_outputs)))
    versions = [_field(8, _field(1, domain) + _field(2, version)) for domain, version in (("", 17), (_MICROSOFT, 1))]
    return b"".join([_field(1, 8), _field(7, b"".join(graph)), *versions])


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: int) -> bytes:
    fields = [*(_field(1, name) for name in inputs), _field(2, output), _field(4, kind)]
    fields += [_field(5, _field(1, name) + _field(3, value) + _field(20, _INT)) for name, value in attributes.items()]
    return b"".join([*fields, _field(7, _MICROSOFT if kind == "MatMulNBits" else "")])


def _tensor(name: str, array: NDArray[Any]) -> bytes:
    sizes = (_field(1, size) for size in array.shape)
    return b"".join([*sizes, _field(2, _TYPES[array.dtype.name]), _field(8, name), _field(9, array.tobytes())])


def _value(name: str, size: int) -> bytes:
    dimensions = _field(1, _field(2, "T")) + _field(1, _field(1, size))
    return _field(1, name) + _field(2, _field(1, _field(1, _TYPES["float32"]) + _field(2, dimensions)))


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return b"".join([_varint(number << 3 | 2), _varint(len(content)), content])


def _varint(value: int) -> bytes:
    return bytes(_sevens(value))


def _sevens(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
