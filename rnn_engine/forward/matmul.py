"""Matrices times activations, as dispatches: several matrices at once, split by rows where a binding ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rnn_engine.forward.segments import (
    MAX_SEGMENTS,
    ROW_ALIGNMENT,
    SEGMENT_WORDS,
    Activation,
    Matrix,
    Part,
    split_matrices,
)
from rnn_engine.forward.step import StepSize
from rnn_engine.forward.tuning import MatMulVariant, Tuning
from rnn_engine.forward.upload import create_weight_buffers, upload_rows
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
class _LoadedPart:
    """A part on the device. It does not refer to the weights on the host, whose memory is freed after loading."""

    format: WeightFormat
    num_rows: int
    num_weights: int
    weight_bytes: int
    weights: Mapping[str, Buffer]  # the format's buffers, by the variable's name
    segments: Buffer  # struct MatMul of segments.wgsl


class MatMulKernels:
    """The compiled variants of the matmul kernels for one model on one device."""

    def __init__(self, kernels: Kernels, tuning: Tuning, batch_constants: Mapping[str, Constant]) -> None:
        self.kernels = kernels
        self.tuning = tuning
        self._constants: dict[str, Constant] = {
            **batch_constants,
            "MAX_SEGMENTS": MAX_SEGMENTS,
            **{f"ACTIVATION_{name}": int(value) for name, value in Activation.__members__.items() if value},
        }

    def small(self, variant: MatMulVariant, weights: WeightFormat) -> Kernel:
        """Return matmul.wgsl for up to `variant.tokens` tokens."""
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
                "WEIGHTS": weights.include,
                "INPUTS": "inputs_broadcast" if self.tuning.broadcast else "inputs_direct",
            },
        )

    def source(self, weights: WeightFormat) -> ShaderSource:
        """Return the WGSL whose bindings all variants for a format have."""
        return self.small(self.tuning.matmuls[0], weights).source

    def tiled(self, weights: WeightFormat) -> Kernel:
        """Return matmul_tiled.wgsl, for any number of tokens."""
        return self.kernels.get("matmul_tiled", self._constants, {"WEIGHTS": weights.include})


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
        return BoundMatMul(self._label, self._kernels, tuple(parts), self._counts_rows)

    def _load(self, part: Part, memory: Memory) -> _LoadedPart:
        buffers = create_weight_buffers(memory, self._label, part.format, part.num_blocks)
        for segment in part.segments:
            upload_rows(memory, buffers, part.format, segment.rows, segment.weights_start)
        table = [int(self._counts_rows), len(part.segments)]
        table += [field for segment in part.segments for field in segment.pack()]
        table += [0] * (2 + MAX_SEGMENTS * SEGMENT_WORDS - len(table))
        segments = memory.create_buffer(f"{self._label} segments", 4 * len(table))
        memory.upload(segments, 0, np.array(table, np.uint32))
        weight_bytes = part.num_blocks * sum(part.format.block_bytes.values())
        return _LoadedPart(part.format, part.num_rows, part.num_weights, weight_bytes, buffers, segments)


@dataclass(frozen=True, slots=True)
class BoundMatMul:
    """A stage: a matmul with its inputs and outputs."""

    label: str
    kernels: MatMulKernels
    parts: tuple[tuple[_LoadedPart, BindGroup], ...]  # one a dispatch
    counts_rows: bool

    @property
    def weight_bytes(self) -> int:
        return sum(part.weight_bytes for part, _ in self.parts)

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        """One dispatch a part, for the tokens or rows of the step, of which there is at least one."""
        count = step.num_rows if self.counts_rows else step.num_tokens
        variant = self.kernels.tuning.matmul(count)
        for part, bind_group in self.parts:
            if variant is None:
                kernel, rows, tokens = self.kernels.tiled(part.format), ROW_ALIGNMENT, 64
            else:
                kernel, rows, tokens = self.kernels.small(variant, part.format), variant.rows, variant.tokens
            tiles = -(-count // tokens)
            moved_bytes, operations = tiles * part.weight_bytes, 2 * count * part.num_weights
            yield Dispatch(self.label, kernel, bind_group, part.num_rows // rows, tiles, moved_bytes, operations)
