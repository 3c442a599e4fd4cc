"""Matrices times activations, as dispatches: several matrices at once, split by rows where a binding ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rnn_engine.forward.segments import (
    MAX_SEGMENTS,
    SEGMENT_WORDS,
    Activation,
    Matrix,
    Part,
    split_matrices,
)
from rnn_engine.forward.step import StepSize
from rnn_engine.forward.tuning import MatMulClass, Tuning
from rnn_engine.forward.upload import create_weight_buffers, upload_rows
from rnn_engine.forward.variants import MatMulVariant
from rnn_engine.forward.weight_formats import WeightFormat
from rnn_engine.gpu import BindGroup, Buffer, Dispatch, Kernel, Kernels, Memory
from shaders import Constant, ShaderSource


@dataclass(frozen=True, slots=True)
class MatMulBuffers:
    """What a matmul reads and writes besides its weights."""

    batch: Buffer
    vectors: Buffer
    inputs: Buffer
    outputs: Buffer


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """A part on the device. It does not refer to the weights on the host, whose memory is freed after loading."""

    format: WeightFormat
    num_rows: int
    num_weights: int
    weight_bytes: int
    weights: Mapping[str, Buffer]  # the format's buffers, by the variable's name
    segments: Buffer  # struct MatMul of segments.wgsl
    kind: MatMulClass


class MatMulKernels:
    """The compiled variants of the matmul kernels for one model on one device, and its matmuls.

    `tuning` may be replaced before the first plan is made.
    """

    def __init__(self, kernels: Kernels, tuning: Tuning, batch_constants: Mapping[str, Constant]) -> None:
        self.kernels = kernels
        self.tuning = tuning
        self.bound: list[BoundMatMul] = []  # those of the model, in the order of loading
        self._constants: dict[str, Constant] = {
            **batch_constants,
            "MAX_SEGMENTS": MAX_SEGMENTS,
            **{f"ACTIVATION_{name}": int(value) for name, value in Activation.__members__.items() if value},
        }

    def get(self, variant: MatMulVariant, weights: WeightFormat) -> Kernel:
        """Return the kernel of a variant for matrices of a format; compiled at the first call."""
        return self.kernels.get(
            variant.shader,
            {**self._constants, **variant.constants},
            {"WEIGHTS": weights.include, **variant.includes},
        )

    def source(self, weights: WeightFormat) -> ShaderSource:
        """Return the WGSL whose bindings all variants for a format have."""
        return self.get(self.tuning.matmul(1), weights).source


class MatMul:
    """Matrices on the device, to be multiplied with the tokens, or the rows, of a step."""

    def __init__(
        self,
        label: str,
        matrices: Sequence[Matrix],
        kernels: MatMulKernels,
        memory: Memory,
        *,
        counts_rows: bool = False,
    ) -> None:
        """Upload `matrices`. `counts_rows`: runs over the step's logit rows instead of its tokens."""
        self._label = label
        self._kernels = kernels
        self._counts_rows = counts_rows
        self._parts = [self._load(part, memory) for part in split_matrices(matrices, memory.max_binding_bytes)]

    def bind(self, buffers: MatMulBuffers) -> BoundMatMul:
        """The stage that multiplies what these buffers hold. The weights are not copied."""
        parts = []
        for loaded in self._parts:
            bindings = {
                "batch": buffers.batch,
                "matmul": loaded.segments,
                **loaded.weights,
                "vectors": buffers.vectors,
                "inputs": buffers.inputs,
                "outputs": buffers.outputs,
            }
            parts.append((loaded, self._kernels.kernels.bind(self._kernels.source(loaded.format), bindings)))
        bound = BoundMatMul(self._label, self._kernels, tuple(parts), self._counts_rows, buffers.batch)
        self._kernels.bound.append(bound)
        return bound

    def _load(self, part: Part, memory: Memory) -> LoadedPart:
        buffers = create_weight_buffers(memory, self._label, part.format, part.num_blocks)
        for segment in part.segments:
            upload_rows(memory, buffers, part.format, segment.rows, segment.weights_start)
        table = [int(self._counts_rows), len(part.segments)]
        table += [field for segment in part.segments for field in segment.pack()]
        table += [0] * (2 + MAX_SEGMENTS * SEGMENT_WORDS - len(table))
        segments = memory.create_buffer(f"{self._label} segments", 4 * len(table))
        memory.upload(segments, 0, np.array(table, np.uint32))
        weight_bytes = part.num_blocks * sum(part.format.block_bytes.values())
        kind = MatMulClass.of(part.format.name, part.num_rows, max(s.matrix.num_columns for s in part.segments))
        return LoadedPart(part.format, part.num_rows, part.num_weights, weight_bytes, buffers, segments, kind)


@dataclass(frozen=True, slots=True)
class BoundMatMul:
    """A stage: a matmul with its inputs and outputs."""

    label: str
    kernels: MatMulKernels
    parts: tuple[tuple[LoadedPart, BindGroup], ...]  # one a dispatch
    counts_rows: bool
    batch: Buffer  # says how many tokens and rows a step has

    @property
    def weight_bytes(self) -> int:
        return sum(part.weight_bytes for part, _ in self.parts)

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        """One dispatch a part, for the tokens or rows of the step, of which there is at least one."""
        count = step.num_rows if self.counts_rows else step.num_tokens
        for part, bind_group in self.parts:
            variant = self.kernels.tuning.matmul(count, part.kind)
            yield self.dispatch(part, bind_group, variant, count)

    def dispatch(self, part: LoadedPart, bind_group: BindGroup, variant: MatMulVariant, count: int) -> Dispatch:
        """Return the dispatch of a part for `count` tokens or rows by a given kernel."""
        tiles = -(-count // variant.tokens)
        moved_bytes, operations = tiles * part.weight_bytes, 2 * count * part.num_weights
        kernel = self.kernels.get(variant, part.format)
        return Dispatch(self.label, kernel, bind_group, part.num_rows // variant.rows, tiles, moved_bytes, operations)
