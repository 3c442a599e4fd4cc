"""Matrix multiplication on the device: uploads a model's matrices and yields the dispatches that multiply them.

One dispatch multiplies several matrices. A matrix larger than a binding is split by rows into several dispatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from rnn_engine.forward.segments import (
    MAX_SEGMENTS,
    SEGMENT_WORDS,
    Activation,
    Matrix,
    SegmentPart,
    SegmentPlace,
    create_weight_buffers,
    split_matrices,
    upload_rows,
)
from rnn_engine.forward.stages import KernelStage, QuantisedInputs
from rnn_engine.forward.step import StepLimits, StepSize
from rnn_engine.forward.tuning import MatMulClass, Tuning
from rnn_engine.forward.variants import MatMulVariant, MatMulWork
from rnn_engine.forward.weight_formats import WeightFormat
from rnn_engine.gpu import BindGroup, Buffer, Dispatch, Kernel, Kernels, Memory
from shaders import Constant, ShaderSource

_NO_CONSTANTS: Final[Mapping[str, Constant]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MatMulBuffers:
    """The device buffers of a matmul other than its weights: batch, operands, inputs and outputs."""

    batch: Buffer
    vectors: Buffer
    inputs: Buffer
    outputs: Buffer


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """The matrices, or rows of them, that one dispatch multiplies, in buffers on the device.

    It has no reference to the weights on the host, so that their memory can be freed.
    """

    format: WeightFormat
    num_rows: int
    num_weights: int
    weight_bytes: int
    weights: Mapping[str, Buffer]  # the format's buffers, by the variable's name
    places: tuple[SegmentPlace, ...]
    segments: Buffer  # struct MatMul of segments.wgsl, which has these places
    kind: MatMulClass

    def work(self, tokens: int) -> MatMulWork:
        """Return the size of the dispatch that multiplies these matrices with `tokens` tokens."""
        columns = max(1, self.num_weights // self.num_rows)  # the mean, if the matrices differ
        return MatMulWork(self.num_rows, columns, self.weight_bytes, tokens, self.kind.weights, self.kind.number)


class MatMulKernels:
    """The matmul kernels of one model on one device, compiled when first used; also lists the model's matmuls.

    `tuning` may be replaced before the first plan is made.
    """

    def __init__(self, kernels: Kernels, tuning: Tuning, limits: StepLimits, *, activations: str = "f32") -> None:
        """Prepare to compile the matmul kernels that `tuning` chooses, for steps of at most `limits`.

        `activations` is f32, or int8 to quantise the inputs of matrices with 8-bit weights to bytes.
        """
        self.kernels = kernels
        self.tuning = tuning
        self.limits = limits
        self.bound: list[BoundMatMul] = []  # the model's matmuls, in the order of loading
        self.normed: list[NormedMatMul] = []  # those of `bound` that follow a norm
        self._quantises = activations == "int8"
        self._packed: dict[int, Buffer] = {}  # the buffers of quantised inputs, by the bytes of a token
        self._constants: dict[str, Constant] = {
            **limits.constants(),
            "MAX_SEGMENTS": MAX_SEGMENTS,
            **{f"ACTIVATION_{name}": int(value) for name, value in Activation.__members__.items() if value},
        }

    def get(
        self, variant: MatMulVariant, weights: WeightFormat, norm: Mapping[str, Constant] = _NO_CONSTANTS
    ) -> Kernel:
        """Return the matmul kernel of `variant` for matrices of the format `weights`. The first call compiles it.

        `norm` has the constants of norm_inputs.wgsl for a variant that norms its inputs.
        """
        return self.kernels.get(
            variant.shader,
            {**self._constants, **variant.constants, **norm},
            {**self.tuning.weight_includes(weights, variant.number), **variant.includes},
        )

    def can_norm(self, width: int) -> bool:
        """Return True if the tuning has kernels that norm inputs of this width, and a workgroup memory for them."""
        normed = self.tuning.normed
        needed = [variant.workgroup_bytes + 4 * (width + variant.threads) for variant in normed]
        return bool(normed) and max(needed) <= self.kernels.workgroup_bytes

    def source(self, part: LoadedPart) -> ShaderSource:
        """Return the WGSL of a kernel that multiplies `part`, from which its bind group is made.

        All variants for `part` have the same bindings.
        """
        return self.get(self.tuning.matmul(1, part.kind), part.format).source

    def number_of(self, weights: WeightFormat) -> str:
        """Return the number type in which matrices of the format `weights` are multiplied: f32 or int8."""
        return "int8" if self._quantises and weights.packed is not None else "f32"

    def packed_inputs(self, memory: Memory, token_bytes: int) -> Buffer:
        """Return the device buffer for a matmul's inputs quantised to bytes, with `token_bytes` for each token.

        All matmuls with the same `token_bytes` share it, and each overwrites it.
        """
        if token_bytes not in self._packed:
            num_bytes = token_bytes * max(self.limits.max_tokens, self.limits.max_rows)
            self._packed[token_bytes] = memory.create_buffer("quantised inputs", num_bytes)
        return self._packed[token_bytes]


class MatMul:
    """One or more matrices on the device that one stage multiplies with the activations of a step."""

    def __init__(
        self,
        label: str,
        matrices: Sequence[Matrix],
        kernels: MatMulKernels,
        memory: Memory,
        *,
        counts_rows: bool = False,
    ) -> None:
        """Upload `matrices` to the device. They multiply a step's tokens, or its logit rows if `counts_rows`."""
        self._label = label
        self._kernels = kernels
        self._memory = memory
        self._counts_rows = counts_rows
        quantised = [matrix for matrix in matrices if kernels.number_of(matrix.weights.format) == "int8"]
        others = [matrix for matrix in matrices if kernels.number_of(matrix.weights.format) != "int8"]
        self._inputs = QuantisedInputs.of(quantised)
        readers = [*map(self._inputs.read_by, quantised), *others]
        self._parts = [self._load(part, memory) for part in split_matrices(readers, memory.max_binding_bytes)]

    def bind(self, buffers: MatMulBuffers) -> BoundMatMul:
        """Return the stage that multiplies `buffers.inputs` by the matrices and writes `buffers.outputs`.

        It shares this object's weights.
        """
        parts = []
        quantised, stage = self._quantise(buffers)
        for loaded in self._parts:
            inputs = quantised if loaded.kind.number == "int8" else buffers.inputs
            bindings = {**_bindings(loaded, buffers), "inputs": inputs}
            parts.append((loaded, self._kernels.kernels.bind(self._kernels.source(loaded), bindings)))
        bound = BoundMatMul(self._label, self._kernels, tuple(parts), self._counts_rows, buffers.batch, stage)
        self._kernels.bound.append(bound)
        return bound

    def bind_normed(
        self, buffers: MatMulBuffers, norm: KernelStage, x: Buffer, state: Buffer, constants: Mapping[str, Constant]
    ) -> NormedMatMul:
        """Return the stage that runs `norm`, which writes `buffers.inputs`, and then multiplies these by the matrices.

        `x` is the residual stream, `state` the layer's states, and `constants` are those of norm_inputs.wgsl.
        """
        kernels, bound = self._kernels, self.bind(buffers)
        parts = []
        if not self._inputs.sources and kernels.can_norm(int(constants["WIDTH"])):
            for loaded in self._parts:
                source = kernels.get(kernels.tuning.normed_matmul(loaded.kind), loaded.format, constants).source
                bindings = {**_bindings(loaded, buffers), "x": x, "state": state}
                parts.append((loaded, kernels.kernels.bind(source, bindings)))
        stage = NormedMatMul(norm, bound, constants, tuple(parts))
        kernels.normed.append(stage)
        return stage

    def _quantise(self, buffers: MatMulBuffers) -> tuple[Buffer, KernelStage | None]:
        """Return the buffer of the inputs quantised to bytes, and the stage that computes them from `buffers.inputs`.

        If no matrix needs quantised inputs, return `buffers.inputs` and None.
        """
        if not self._inputs.sources:
            return buffers.inputs, None
        packed = self._kernels.packed_inputs(self._memory, self._inputs.token_bytes)
        stage = self._inputs.stage(
            self._kernels.kernels,
            self._memory,
            self._kernels.limits,
            batch=buffers.batch,
            inputs=buffers.inputs,
            packed=packed,
            counts_rows=self._counts_rows,
        )
        return packed, stage

    def _load(self, part: SegmentPart, memory: Memory) -> LoadedPart:
        buffers = create_weight_buffers(memory, self._label, part.format, part.num_blocks)
        for segment in part.segments:
            upload_rows(memory, buffers, part.format, segment.rows, segment.weights_start)
        places = tuple(segment.place for segment in part.segments)
        table = [int(self._counts_rows), len(places)]
        table += [word for place in places for word in place.pack()]
        table += [0] * (2 + MAX_SEGMENTS * SEGMENT_WORDS - len(table))
        segments = memory.create_buffer(f"{self._label} segments", 4 * len(table))
        memory.upload(segments, 0, np.array(table, np.uint32))
        weight_bytes = part.num_blocks * sum(part.format.block_bytes.values())
        columns = max(segment.matrix.num_columns for segment in part.segments)
        kind = MatMulClass.of(part.format.name, part.num_rows, columns, self._kernels.number_of(part.format))
        return LoadedPart(part.format, part.num_rows, part.num_weights, weight_bytes, buffers, places, segments, kind)


def _bindings(loaded: LoadedPart, buffers: MatMulBuffers) -> dict[str, Buffer]:
    return {
        "batch": buffers.batch,
        "matmul": loaded.segments,
        **loaded.weights,
        "vectors": buffers.vectors,
        "outputs": buffers.outputs,
    }


@dataclass(frozen=True, slots=True)
class BoundMatMul:
    """The stage that multiplies the matrices of a `MatMul` with given input and output buffers."""

    label: str
    kernels: MatMulKernels
    parts: tuple[tuple[LoadedPart, BindGroup], ...]  # one a dispatch
    counts_rows: bool
    batch: Buffer  # says how many tokens and rows a step has
    quantise: KernelStage | None  # the stage that quantises the inputs, if some part multiplies bytes

    @property
    def weight_bytes(self) -> int:
        return sum(part.weight_bytes for part, _ in self.parts)

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        """Yield the matmul's dispatches in a step: one to quantise its inputs, if needed, and one for each part.

        The step must have at least one token, or one row if the inputs are rows.
        """
        if self.quantise is not None:
            yield from self.quantise.dispatches(step)
        count = step.num_rows if self.counts_rows else step.num_tokens
        for part, bind_group in self.parts:
            variant = self.kernels.tuning.matmul(count, part.kind)
            yield self.dispatch(part, bind_group, variant, count)

    def dispatch(
        self,
        part: LoadedPart,
        bind_group: BindGroup,
        variant: MatMulVariant,
        count: int,
        norm: Mapping[str, Constant] = _NO_CONSTANTS,
    ) -> Dispatch:
        """Return the dispatch that multiplies `part`, a part of the matrices, with `count` tokens or logit rows.

        For `norm` see `MatMulKernels.get`.
        """
        tiles = -(-count // variant.tokens)
        moved_bytes, operations = tiles * part.weight_bytes, 2 * count * part.num_weights
        kernel = self.kernels.get(variant, part.format, norm)
        return Dispatch(self.label, kernel, bind_group, part.num_rows // variant.rows, tiles, moved_bytes, operations)


@dataclass(frozen=True, slots=True)
class NormedMatMul:
    """The stage of a layer norm with its token shift, and of the matmul that multiplies their results.

    If the tuning has a kernel for it, every workgroup of the matmul norms a single token itself, in place of a dispatch
    before. The mixes are not stored then, so no other stage may read them.
    """

    norm: KernelStage
    matmul: BoundMatMul
    constants: Mapping[str, Constant]  # of norm_inputs.wgsl
    parts: tuple[tuple[LoadedPart, BindGroup], ...]  # of the matmul, if it can norm its inputs

    @property
    def weight_bytes(self) -> int:
        return self.matmul.weight_bytes

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        if self.parts and step.num_tokens == 1:
            for part, bind_group in self.parts:
                variant = self.matmul.kernels.tuning.normed_matmul(part.kind)
                yield self.matmul.dispatch(part, bind_group, variant, step.num_tokens, self.constants)
        else:
            yield from self.norm.dispatches(step)
            yield from self.matmul.dispatches(step)
