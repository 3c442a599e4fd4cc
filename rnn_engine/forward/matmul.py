"""Matrices times activations, as dispatches: several matrices at once, split by rows where a binding ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.packing import PANEL, WeightFormat, element_bytes, pack_panels, round_up
from rnn_engine.forward.step import StepSize
from rnn_engine.forward.tuning import MatMulVariant, Tuning
from rnn_engine.gpu import BindGroup, Buffer, Device, Dispatch, Kernel, Kernels
from shaders import Constant, ShaderSource

ROW_ALIGNMENT = 64  # every segment starts at such a row; no workgroup takes more rows
MAX_SEGMENTS = 8
_CHUNK_BYTES = 16 << 20  # packed at once


class Activation(IntEnum):
    """What a matmul does with a finished sum; the numbers are the WGSL's."""

    NONE = 0
    TANH = 1
    SIGMOID = 2
    SQUARED_RELU = 3
    BIASED_SIGMOID = 4
    DECAY = 5
    RESIDUAL = 6


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a matmul: where its weights come from, its inputs and its outputs. Offsets count floats."""

    weights: NDArray[Any]  # [R, C], any float type
    inputs_start: int
    inputs_stride: int  # a multiple of 4, no less than C rounded up to 8
    outputs_start: int
    outputs_stride: int
    activation: Activation = Activation.NONE
    bias_start: int = 0


@dataclass(frozen=True, slots=True)
class MatMulBuffers:
    """What a matmul reads and writes besides its weights."""

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
        return round_up(self.matrix.weights.shape[1], PANEL) // PANEL

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
        return last.first_row + round_up(last.end - last.start, ROW_ALIGNMENT)

    @property
    def num_blocks(self) -> int:
        last = self.segments[-1]
        return last.weights_start + round_up(last.end - last.start, ROW_ALIGNMENT) * last.num_blocks


@dataclass(frozen=True, slots=True)
class _LoadedPart:
    """A part on the device."""

    num_rows: int
    weights: Buffer
    segments: Buffer  # struct MatMul of segments.wgsl


class MatMulKernels:
    """The compiled variants of the matmul kernels for one model on one device."""

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

    def small(self, variant: MatMulVariant) -> Kernel:
        """matmul.wgsl for up to `variant.tokens` tokens."""
        return self.kernels.get(
            "matmul",
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
        return self.small(self.tuning.matmuls[0]).source

    def tiled(self) -> Kernel:
        """matmul_tiled.wgsl."""
        return self.kernels.get("matmul_tiled", self._constants, {"WEIGHTS": f"weights_{self.weights}"})


class MatMul:
    """Matrices on the device, to be multiplied with the tokens, or the rows, of a step."""

    def __init__(
        self,
        label: str,
        matrices: Sequence[Matrix],
        kernels: MatMulKernels,
        device: Device,
        *,
        counts_rows: bool = False,
    ) -> None:
        """Upload `matrices`. `counts_rows`: runs over the step's logit rows instead of its tokens."""
        self._label = label
        self._kernels = kernels
        self._counts_rows = counts_rows
        block_bytes = PANEL * element_bytes(kernels.weights)
        parts = list(_split_rows(matrices, device.max_binding_bytes // block_bytes))
        self._parts = [self._load(part, device) for part in parts]
        self._weight_bytes = sum(part.num_blocks for part in parts) * block_bytes

    def bind(self, buffers: MatMulBuffers) -> BoundMatMul:
        """The stage that multiplies what these buffers hold. The weights are not copied."""
        parts = []
        for part in self._parts:
            bindings = {
                "batch": buffers.batch,
                "matmul": part.segments,
                "weights": part.weights,
                "vectors": buffers.vectors,
                "inputs": buffers.inputs,
                "outputs": buffers.outputs,
            }
            parts.append((part.num_rows, self._kernels.kernels.bind(self._kernels.source, bindings)))
        return BoundMatMul(self._label, self._kernels, tuple(parts), self._counts_rows, self._weight_bytes)

    def _load(self, part: _Part, device: Device) -> _LoadedPart:
        block_bytes = PANEL * element_bytes(self._kernels.weights)
        weights = device.create_buffer(f"{self._label} weights", part.num_blocks * block_bytes)
        for segment in part.segments:
            chunk = max(1, _CHUNK_BYTES // (segment.num_blocks * PANEL * 4) // PANEL) * PANEL  # rows
            for start in range(segment.start, segment.end, chunk):
                rows = segment.matrix.weights[start : min(start + chunk, segment.end)]
                block = segment.weights_start + (start - segment.start) * segment.num_blocks
                device.upload(weights, block * block_bytes, pack_panels(rows, self._kernels.weights))
        table = [int(self._counts_rows), len(part.segments)]
        table += [field for segment in part.segments for field in segment.pack()]
        table += [0] * (2 + MAX_SEGMENTS * 10 - len(table))
        segments = device.create_buffer(f"{self._label} segments", 4 * len(table))
        device.upload(segments, 0, np.array(table, np.uint32))
        return _LoadedPart(part.num_rows, weights, segments)


@dataclass(frozen=True, slots=True)
class BoundMatMul:
    """A stage: a matmul with its inputs and outputs."""

    label: str
    kernels: MatMulKernels
    parts: tuple[tuple[int, BindGroup], ...]  # rows and buffers of each dispatch
    counts_rows: bool
    weight_bytes: int

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        """One dispatch a part, for the tokens or rows of the step, of which there is at least one."""
        count = step.num_rows if self.counts_rows else step.num_tokens
        variant = self.kernels.tuning.matmul(count)
        if variant is None:
            kernel, rows, tokens = self.kernels.tiled(), ROW_ALIGNMENT, 64
        else:
            kernel, rows, tokens = self.kernels.small(variant), variant.rows, variant.tokens
        for num_rows, bind_group in self.parts:
            yield Dispatch(self.label, kernel, bind_group, num_rows // rows, -(-count // tokens))


def _split_rows(matrices: Sequence[Matrix], max_blocks: int) -> Iterator[_Part]:
    """Share out the rows of `matrices` to parts whose weights are at most `max_blocks` blocks."""
    part: list[_Segment] = []
    first_row = blocks = 0
    for matrix in matrices:
        num_rows, num_columns = matrix.weights.shape
        row_blocks = round_up(num_columns, PANEL) // PANEL
        start = 0
        while start < num_rows:
            room = (max_blocks - blocks) // row_blocks // ROW_ALIGNMENT * ROW_ALIGNMENT
            if part and (room == 0 or len(part) == MAX_SEGMENTS):
                yield _Part(tuple(part))
                part, first_row, blocks = [], 0, 0
                continue
            end = min(num_rows, start + room)
            part.append(_Segment(matrix, start, end, first_row, blocks))
            taken = round_up(end - start, ROW_ALIGNMENT)
            first_row += taken
            blocks += taken * row_blocks
            start = end
    yield _Part(tuple(part))
