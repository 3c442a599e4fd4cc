"""Matmuls on the processor with onnxruntime, whose kernels multiply weights of 8 and 4 bits in bytes.

The layers are the graphs of `cpu_graph`, and the head is one of its own. The products of a row have the same bits
whatever other rows are multiplied with it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import psutil
from numpy.typing import NDArray

from rnn_engine.forward.cpu_graph import GraphLayers
from rnn_engine.forward.onnx_graph import Graph
from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.forward.weight_formats import QuantisedFormat
from rnn_engine.quantised import Blocks, pack_codes, quantise_rows, unpack_codes
from rnn_engine.quantised.rows import PIECE_WEIGHTS, Matrix, read_rows
from rnn_engine.reference import Array, RunLayers, Weights
from rnn_engine.reference.threads import SMALL_WIDTH
from rnn_engine.types import F32, NO_LORAS, LoraRoom, Model, ModelShape

MatMul: TypeAlias = Callable[[F32], F32]
"""A function from x [T, in] to its product [T, out] with a matrix."""

_LEVELS: Final = ("nf4", "sf4", "iq4_nl", "iq4_xs")  # formats whose weights are not multiples of a step
_PART_COLUMNS: Final = {"q2_k": 16, "q3_k": 16, "q6_k": 16, "q4_k": 32, "q5_k": 32}  # that share a scale in a block


def count_threads(shape: ModelShape, wanted: int | None) -> int:
    """Return how many threads multiply: `wanted`, or else the physical cores, but one for a small model."""
    if shape.width <= SMALL_WIDTH:
        return 1
    cores = psutil.cpu_count(logical=False) or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return wanted or max(1, min(cores, allowed))


class MatMulWeights(Weights):
    """The tensors of a model that `GraphLayers` do not hold: tables of rows and the head, which multiplies."""

    def __init__(self, shape: ModelShape, tensors: Mapping[str, Array | Blocks], matmuls: Mapping[str, MatMul]) -> None:
        super().__init__(shape, tensors.__getitem__)
        self._matmuls = matmuls

    def matmul(self, x: Array, name: str) -> Array:
        return self._matmuls[name](x)


def load_layers(
    model: Model,
    run_layers: RunLayers,
    format_of: FormatOf,
    *,
    in_bytes: bool,
    num_threads: int,
    lora_room: LoraRoom = NO_LORAS,
) -> tuple[Weights, RunLayers]:
    """Read all tensors of `model`, which may then be closed, for the pass `run_layers` on `num_threads` threads.

    Return the weights, and the pass over the layers that belongs to them. Matrices whose format, by `format_of`, has
    blocks of 8 bits or less are kept in them and multiplied with inputs that are rounded to bytes, if `in_bytes`. All
    others are f32.
    """
    matrices = _Matrices(model, format_of, in_bytes=in_bytes, num_threads=num_threads, lora_room=lora_room)
    names = model.shape.tensor_names
    heads = [names.head] if model.shape.has_head and names.head in model.names else []
    with ThreadPoolExecutor(1) as pool:
        futures = {name: pool.submit(matrices.matmul, name) for name in heads}
        layers = GraphLayers(run_layers, matrices, is_later_part=not model.has(names.embedding))
    matmuls = {name: future.result() for name, future in futures.items()}
    tensors = {name: matrices.tensor(name) for name in model.names if name not in matrices.read}
    trim_heap()
    return MatMulWeights(model.shape, tensors, matmuls), layers


def trim_heap() -> None:
    """Return freed memory to the system: glibc would keep as much as the graphs took while they were started."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


class _Matrices:
    """The weights of a model in the formats in which they are multiplied; see `rnn_engine.forward.cpu_graph`."""

    def __init__(
        self, model: Model, format_of: FormatOf, *, in_bytes: bool, num_threads: int, lora_room: LoraRoom
    ) -> None:
        self.shape = model.shape
        self.lora_room = lora_room
        self.num_threads = num_threads
        self.read = set[str]()  # the names of tensors that graphs hold
        self._model = model
        self._names = set(model.names)
        self._format_of = format_of
        self._in_bytes = in_bytes

    def fetch(self, name: str) -> Array:
        tensor = self.tensor(name)
        self.read.add(name)
        return np.asarray(_floats(tensor), np.float32)

    def tensor(self, name: str) -> NDArray[Any] | Blocks:
        """Return a tensor in its format. Raises KeyError if there is none."""
        if name not in self._names:
            raise KeyError(name)
        matrix = self._model.matrix(name)
        tensor = self._convert(name, matrix) if len(matrix.shape) == 2 else read_rows(matrix)
        return tensor if isinstance(tensor, Blocks) else np.ascontiguousarray(tensor)

    def size_of(self, name: str) -> Sequence[int]:
        return self._model.matrix(name).shape

    def add(self, graph: Graph, name: str, x: str, product: str) -> int:
        self.read.add(name)
        matrix = self._model.matrix(name)
        num_rows, num_columns = matrix.shape
        whole: list[NDArray[Any]] = []
        step = max(1, PIECE_WEIGHTS // num_columns)
        for start in range(0, num_rows, step):
            rows = self._convert(name, matrix[start : start + step])
            piece = Codes.of(rows) if self._in_bytes and isinstance(rows, Blocks) else None
            arrays = [_floats(rows)] if piece is None else piece.arrays
            if not whole:
                types = [np.uint8 if each.dtype == np.uint8 else np.float32 for each in arrays]
                whole = [np.empty((num_rows, *each.shape[1:]), kind) for each, kind in zip(arrays, types, strict=True)]
            for target, each in zip(whole, arrays, strict=True):
                target[start : start + step] = each
        if piece is None:
            graph.node("Gemm", [x, *map(graph.constant, whole)], product, transB=1)
            return 1
        Codes(piece.bits, *whole).add(graph, x, product)
        return _multiple_of_rows(piece.bits, piece.part)

    def matmul(self, name: str) -> MatMul:
        """Return the matmul by a matrix of no other graph."""
        num_rows, num_columns = self.size_of(name)
        graph = Graph()
        multiple = self.add(graph, name, "x", "y")
        run = graph.start({"x": ("float32", ("T", num_columns))}, ["y"], self.num_threads).run

        def multiply(x: F32) -> F32:
            count = len(x)
            if not count:
                return np.empty((0, num_rows), np.float32)
            if surplus := -count % multiple:
                x = np.pad(x, ((0, surplus), (0, 0)))
            product: F32 = run(None, {"x": x})[0]
            return product[:count]

        return multiply

    def _convert(self, name: str, matrix: Matrix) -> NDArray[Any] | Blocks:
        """Return a matrix or some of its rows in its format: as blocks, or as floats."""
        rows, wanted = read_rows(matrix), self._format_of(name)
        if wanted is None:
            return rows
        if not isinstance(wanted, QuantisedFormat):
            return _floats(rows)
        same = isinstance(rows, Blocks) and rows.format == wanted.blocks
        return rows if same else quantise_rows(wanted.blocks, _floats(rows))


def _floats(rows: NDArray[Any] | Blocks) -> NDArray[Any]:
    return rows.numbers() if isinstance(rows, Blocks) else rows


@cache
def _multiple_of_rows(bits: int, part: int) -> int:
    """Return the least multiple of rows with which the product of a row has the same bits in any number of rows.

    Kernels multiply 2 or 4 rows at a time. They may add up the products of the last rows in another order.
    """
    generator = np.random.default_rng(1)
    shape = (67, 4 * max(part // 16, 4), part * bits // 8)  # [R, P, bytes]
    scales = generator.random(shape[:2], np.float32)
    graph = Graph()
    Codes(bits, generator.integers(0, 256, shape, np.uint8), scales, None).add(graph, "x", "y")
    run = graph.start({"x": ("float32", ("T", shape[1] * part))}, ["y"], 1).run
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
    offsets: F32 | None = None  # [R, P]; None if the format has none

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
    def arrays(self) -> list[NDArray[Any]]:
        return [each for each in (self.codes, self.scales, self.offsets) if each is not None]

    @property
    def part(self) -> int:
        """The number of weights that share a scale."""
        return int(self.codes.shape[-1]) * 8 // self.bits

    def add(self, graph: Graph, x: str, product: str) -> None:
        """Add the `product` of the value `x` with the matrix to a graph."""
        num_rows, num_parts, _ = self.codes.shape
        sizes = {"K": num_parts * self.part, "N": num_rows, "bits": self.bits, "block_size": self.part}
        parts, sums, steps = (f"{product}, {name}" for name in ("parts", "sums", "steps"))
        inputs = [x, graph.constant(self.codes), graph.constant(self.scales)]
        graph.node("MatMulNBits", inputs, product if self.offsets is None else steps, **sizes, accuracy_level=4)
        if self.offsets is None:
            return
        graph.node("Reshape", [x, graph.constant(np.array([-1, num_parts, self.part]))], parts)
        graph.node("ReduceSum", [parts, graph.constant(np.array([-1]))], sums, keepdims=0)
        graph.node("Gemm", [sums, graph.constant(self.offsets), steps], product, transB=1)
