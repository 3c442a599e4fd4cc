"""Products of matrices with the activations, as dispatches: several matrices at once, split where a binding ends.

Knows the layout of segments.wgsl; does not know what a model computes with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.packing import PANEL, WeightFormat, element_bytes, pack_panels, padded
from rnn_engine.forward.tuning import ProductVariant, Tuning
from rnn_engine.gpu import BindGroup, Buffer, Device, Dispatch, Kernel, Kernels
from shaders import Constant, ShaderSource

ROW_ALIGNMENT = 64  # every segment starts at such a row; no workgroup takes more rows
MAX_SEGMENTS = 8
_CHUNK_BYTES = 16 << 20  # packed at once


class Activation(IntEnum):
    """What a product does with a finished sum; the numbers are the WGSL's."""

    NONE = 0
    TANH = 1
    SIGMOID = 2
    SQUARED_RELU = 3
    BIASED_SIGMOID = 4
    DECAY = 5
    RESIDUAL = 6


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a product: where its weights come from, its inputs and its outputs. Offsets count floats."""

    weights: NDArray[Any]  # [R, C], any float type
    inputs_start: int
    inputs_stride: int  # a multiple of 4, no less than C padded to 8
    outputs_start: int
    outputs_stride: int
    activation: Activation = Activation.NONE
    bias_start: int = 0


@dataclass(frozen=True, slots=True)
class ProductBuffers:
    """What a product reads and writes besides its weights."""

    batch: Buffer
    vectors: Buffer
    inputs: Buffer
    outputs: Buffer


@dataclass(frozen=True, slots=True)
class _Segment:
    """Rows `start` to `end` of `matrix`, the first of them at `first_row` of its part."""

    matrix: Matrix
    start: int
    end: int
    first_row: int
    weights_start: int  # blocks of 8

    @property
    def num_blocks(self) -> int:
        return padded(self.matrix.weights.shape[1]) // PANEL

    def pack(self) -> list[int]:
        """The fields of struct Segment."""
        matrix = self.matrix
        return [
            self.first_row,
            self.end - self.start,
            self.num_blocks,
            self.weights_start,
            matrix.inputs_start,
            matrix.inputs_stride,
            matrix.outputs_start + self.start,
            matrix.outputs_stride,
            matrix.bias_start + self.start,
            int(matrix.activation),
        ]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one dispatch computes: segments whose weights fit one binding."""

    segments: tuple[_Segment, ...]

    @property
    def num_rows(self) -> int:
        last = self.segments[-1]
        return last.first_row + padded(last.end - last.start, ROW_ALIGNMENT)

    @property
    def num_blocks(self) -> int:
        last = self.segments[-1]
        return last.weights_start + padded(last.end - last.start, ROW_ALIGNMENT) * last.num_blocks


@dataclass(frozen=True, slots=True)
class _LoadedPart:
    num_rows: int
    bind_group: BindGroup


class ProductKernels:
    """The compiled variants of the product kernels for one model on one device."""

    def __init__(
        self, kernels: Kernels, tuning: Tuning, weights: WeightFormat, batch_constants: dict[str, Constant]
    ) -> None:
        self.kernels = kernels
        self.tuning = tuning
        self.weights = weights
        self._constants: dict[str, Constant] = {
            **batch_constants,
            "MAX_SEGMENTS": MAX_SEGMENTS,
            **{f"ACTIVATION_{name}": int(value) for name, value in Activation.__members__.items() if value},
        }

    def small(self, variant: ProductVariant) -> Kernel:
        """product.wgsl for up to `variant.tokens` tokens."""
        return self.kernels.get(
            "product",
            {
                **self._constants,
                "TOKENS": variant.tokens,
                "GROUPS": variant.groups,
                "PANELS": variant.panels,
                "SPLITS": variant.splits,
            },
            {
                "WEIGHTS": f"weights_{self.weights}",
                "INPUTS": "inputs_broadcast" if self.tuning.broadcast else "inputs_direct",
            },
        )

    @property
    def source(self) -> ShaderSource:
        """The WGSL whose bindings all variants have."""
        return self.small(self.tuning.products[0]).source

    def tiled(self) -> Kernel:
        """product_tiled.wgsl."""
        return self.kernels.get("product_tiled", self._constants, {"WEIGHTS": f"weights_{self.weights}"})


class Product:
    """Matrices on the device, ready to be multiplied with the tokens, or the rows, of a step."""

    def __init__(
        self,
        label: str,
        matrices: Sequence[Matrix],
        buffers: ProductBuffers,
        kernels: ProductKernels,
        device: Device,
        *,
        counts_rows: bool = False,
    ) -> None:
        """Upload `matrices`. `counts_rows`: runs over the step's logit rows instead of its tokens."""
        self._label = label
        self._kernels = kernels
        block_bytes = PANEL * element_bytes(kernels.weights)
        parts = list(_cut(matrices, device.max_binding_bytes // block_bytes))
        self._parts = [self._load(part, buffers, device, counts_rows) for part in parts]
        self.weight_bytes = sum(part.num_blocks for part in parts) * block_bytes

    def dispatches(self, count: int) -> Iterator[Dispatch]:
        """The dispatches for `count` tokens or rows, at least one."""
        variant = self._kernels.tuning.product(count)
        if variant is None:
            kernel, rows, tokens = self._kernels.tiled(), ROW_ALIGNMENT, 64
        else:
            kernel, rows, tokens = self._kernels.small(variant), variant.rows, variant.tokens
        for part in self._parts:
            yield Dispatch(self._label, kernel, part.bind_group, part.num_rows // rows, -(-count // tokens))

    def _load(self, part: _Part, buffers: ProductBuffers, device: Device, counts_rows: bool) -> _LoadedPart:
        block_bytes = PANEL * element_bytes(self._kernels.weights)
        weights = device.create_buffer(f"{self._label} weights", part.num_blocks * block_bytes)
        for segment in part.segments:
            chunk = max(1, _CHUNK_BYTES // (segment.num_blocks * PANEL * 4) // PANEL) * PANEL  # rows
            for start in range(segment.start, segment.end, chunk):
                rows = segment.matrix.weights[start : min(start + chunk, segment.end)]
                block = segment.weights_start + (start - segment.start) * segment.num_blocks
                device.upload(weights, block * block_bytes, pack_panels(rows, self._kernels.weights))
        table = [int(counts_rows), len(part.segments)]
        table += [field for segment in part.segments for field in segment.pack()]
        table += [0] * (2 + MAX_SEGMENTS * 10 - len(table))
        table_buffer = device.create_buffer(f"{self._label} segments", 4 * len(table))
        device.upload(table_buffer, 0, np.array(table, np.uint32))
        bind_group = self._kernels.kernels.bind(
            self._kernels.source,
            {
                "batch": buffers.batch,
                "product": table_buffer,
                "weights": weights,
                "vectors": buffers.vectors,
                "inputs": buffers.inputs,
                "outputs": buffers.outputs,
            },
        )
        return _LoadedPart(part.num_rows, bind_group)


def _cut(matrices: Sequence[Matrix], max_blocks: int) -> Iterator[_Part]:
    """Share out the rows of `matrices` to parts whose weights are at most `max_blocks` blocks."""
    part: list[_Segment] = []
    first_row = blocks = 0
    for matrix in matrices:
        num_rows, num_columns = matrix.weights.shape
        row_blocks = padded(num_columns) // PANEL
        start = 0
        while start < num_rows:
            room = (max_blocks - blocks) // row_blocks // ROW_ALIGNMENT * ROW_ALIGNMENT
            if part and (room == 0 or len(part) == MAX_SEGMENTS):
                yield _Part(tuple(part))
                part, first_row, blocks = [], 0, 0
                continue
            end = min(num_rows, start + room)
            part.append(_Segment(matrix, start, end, first_row, blocks))
            taken = padded(end - start, ROW_ALIGNMENT)
            first_row += taken
            blocks += taken * row_blocks
            start = end
    yield _Part(tuple(part))
