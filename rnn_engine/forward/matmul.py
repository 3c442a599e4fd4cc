"""Matrix multiplication on the device: of several matrices in one dispatch, or of one that is too large in several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from rnn_engine.errors import DeviceError
from rnn_engine.forward.pairs import Pairs, half_names
from rnn_engine.forward.segments import (
    MAX_SEGMENTS,
    SEGMENT_WORDS,
    Activation,
    Matrix,
    SegmentPart,
    SegmentPlace,
    SegmentWeights,
    create_weight_buffers,
    split_matrices,
    upload_rows,
)
from rnn_engine.forward.stages import KernelStage, QuantisedInputs
from rnn_engine.forward.step import StepLimits, StepSize
from rnn_engine.forward.tuning import MatMulClass, Tuning
from rnn_engine.forward.variants import MatMulVariant, MatMulWork, StreamVariant
from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, WEIGHT_FORMATS, WeightFormat, round_up
from rnn_engine.gpu import BindGroup, Buffer, Dispatch, Kernel, Kernels, Memory
from rnn_engine.quantised import KEPT_FORMATS
from rnn_engine_shaders import Constant, Include, ShaderSource

_AFTER_PAIRS: Final = {
    Activation.NONE: Activation.RESIDUAL,
    Activation.RESIDUAL: Activation.RESIDUAL,
    Activation.SCALED_RESIDUAL: Activation.SCALED_RESIDUAL,
    Activation.SQUARED_RELU: Activation.ADDED_SQUARED_RELU,
    Activation.SIGMOID: Activation.ADDED_SIGMOID,
    Activation.SILU: Activation.ADDED_SILU,
}
"""The activation of a matrix -> that with which its low-rank pair is added to its sums."""


@dataclass(frozen=True, slots=True)
class MatMulBuffers:
    """The device buffers of a matmul other than its weights: batch, operands, inputs and outputs."""

    batch: Buffer
    vectors: Buffer
    inputs: Buffer
    outputs: Buffer


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """Matrices, or rows of them, for one dispatch, on the device. It keeps no reference to weights on the host."""

    format: WeightFormat
    num_rows: int
    num_weights: int
    weight_bytes: int
    weights: Mapping[str, Buffer]  # the format's buffers, by the variable's name
    places: tuple[SegmentPlace, ...]
    segments: Buffer  # struct MatMul of segments.wgsl, which has these places
    kind: MatMulClass
    join_constants: Mapping[str, Constant] = field(default_factory=dict)  # of two_formats.wgsl, for blocks with floats

    @property
    def constants(self) -> dict[str, Constant]:
        """The constants of a kernel that multiplies these matrices."""
        return {"PAIRED": self.places[0].activation is Activation.SWIGLU, **self.join_constants}

    def work(self, tokens: int) -> MatMulWork:
        """Return the size of the dispatch that multiplies these matrices with `tokens` tokens."""
        columns = max(1, self.num_weights // self.num_rows)  # the mean, if the matrices differ
        return MatMulWork(self.num_rows, columns, self.weight_bytes, tokens, self.kind.weights, self.kind.number)


class MatMulKernels:
    """The matmul kernels and matmuls of one model on a device. `tuning` may be replaced before the first plan."""

    def __init__(
        self,
        kernels: Kernels,
        tuning: Tuning,
        limits: StepLimits,
        *,
        activations: str = "f32",
        pairs: Pairs | None = None,
    ) -> None:
        """Prepare kernels for steps within `limits`. `activations` int8 quantises inputs of 8-bit weights to bytes.

        `pairs` are low-rank pairs beside the model's matrices, to train, or with scales of each token for LoRAs.
        """
        self.kernels = kernels
        self.tuning = tuning
        self.limits = limits
        self.pairs = pairs
        self.bound: list[BoundMatMul] = []  # the model's matmuls, in the order of loading
        self.bound_pairs: list[BoundPairs] = []  # beside them, in the same order
        self._quantises = activations == "int8"
        self._packed: dict[int, Buffer] = {}  # the buffers of quantised inputs, by the bytes of a token
        self._pair_buffers: tuple[Buffer, Buffer] | None = None
        self._constants: dict[str, Constant] = {
            "MAX_SEGMENTS": MAX_SEGMENTS,
            **{f"ACTIVATION_{each.name}": int(each) for each in Activation if each and each is not Activation.SWIGLU},
            "PAIRED": False,
        }

    def get(
        self,
        variant: MatMulVariant,
        weights: WeightFormat,
        constants: Mapping[str, Constant] = MappingProxyType({}),
        includes: Mapping[str, Include] = MappingProxyType({}),
    ) -> Kernel:
        """Return the matmul kernel of `variant` for matrices of the format `weights`. The first call compiles it.

        `constants` and `includes` are those of norm_inputs.wgsl, for a variant that norms its inputs, and of
        two_formats.wgsl.
        """
        limits = self.limits.constants() if "batch_counts" in variant.includes else {}
        return self.kernels.get(
            variant.shader,
            {**self._constants, **limits, **variant.constants, **constants},
            {**self.tuning.weight_includes(weights, variant.number), **variant.includes, **includes},
        )

    def can_norm(self, width: int) -> bool:
        """Return True if the tuning has kernels that norm inputs of this width, and a workgroup memory for them."""
        normed = self.tuning.normed
        needed = [variant.workgroup_bytes + 4 * (width + variant.threads) for variant in normed]
        return bool(normed) and max(needed) <= self.kernels.workgroup_bytes

    def source(self, part: LoadedPart) -> ShaderSource:
        """Return the WGSL of a kernel that multiplies `part`; all variants for it have the same bindings."""
        return self.get(self.tuning.matmul(1, part.kind), part.format, part.constants).source

    def number_of(self, weights: WeightFormat) -> str:
        """Return the number type in which matrices of the format `weights` are multiplied: f32 or int8."""
        return "int8" if self._quantises and weights.packed is not None else "f32"

    def pair_buffers(self, memory: Memory, num_matrices: int) -> tuple[Buffer, Buffer]:
        """Return the buffers for the hidden activations of `num_matrices` pairs, and for scales.

        All matmuls share those of LoRAs.
        """
        pairs = self.pairs
        assert pairs is not None
        stride = round_up(pairs.rank, COLUMNS_AT_ONCE)
        plane = 4 * self.limits.max_tokens * stride
        if pairs.scale is not None:
            scales = memory.create_buffer("scales of pairs", 4 * stride)
            memory.upload(scales, 0, np.full(stride, pairs.scale, np.float32))
            return memory.create_buffer("hidden of pairs", num_matrices * plane), scales
        if self._pair_buffers is None:
            hidden = memory.create_buffer("hidden of LoRAs", MAX_SEGMENTS * plane)
            self._pair_buffers = hidden, memory.create_buffer("scales of LoRAs", plane)
        return self._pair_buffers

    def packed_inputs(self, memory: Memory, token_bytes: int) -> Buffer:
        """Return the buffer of inputs in bytes, which all matmuls with the same `token_bytes` overwrite."""
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
        paired = kernels.pairs.matrices if kernels.pairs is not None else {}
        self._paired = [matrix for matrix in matrices if matrix.weights.name in paired]
        self._always_paired = bool(self._paired) and kernels.pairs is not None and kernels.pairs.scale is not None
        if self._always_paired:
            matrices = [replace(matrix, activation=self._activation(matrix)) for matrix in matrices]
        quantised = [matrix for matrix in matrices if kernels.number_of(matrix.weights.format) == "int8"]
        others = [matrix for matrix in matrices if kernels.number_of(matrix.weights.format) != "int8"]
        self._inputs = QuantisedInputs.of(quantised)
        readers = [*map(self._inputs.read_by, quantised), *others]
        split = list(split_matrices(readers, memory.max_binding_bytes))
        self._parts = [self._load(part, memory) for part in split]
        has_loras = self._paired and not self._always_paired
        self._before_pairs = list(map(self._bare, split, self._parts)) if has_loras else []
        self._joined = self._join()

    def bind(self, buffers: MatMulBuffers) -> BoundMatMul:
        """Return the stage, with the same weights, that multiplies `buffers.inputs` and writes `buffers.outputs`."""
        singles: tuple[SinglePart, ...] = ()
        if self._joined is not None:
            variant = self._kernels.tuning.fixed_matmul(1, self._joined.kind)
            assert isinstance(variant, StreamVariant)
            singles = (self._single(self._joined, variant, buffers, {"inputs": buffers.inputs}),)
        return self._bind(buffers, singles)

    def bind_normed(self, buffers: MatMulBuffers, norm: NormBefore) -> NormedMatMul:
        """Return the stage of `norm`, which writes `buffers.inputs`, and of the matmul that multiplies these."""
        more, includes = {"x": norm.x, "state": norm.state}, {}
        if norm.keeps_mixes:
            more["mixes"], includes["mixes_not_kept"] = buffers.inputs, "keep_mixes"

        def fits(part: LoadedPart) -> bool:
            return len(_bindings(part, buffers)) + len(more) <= self._kernels.kernels.storage_buffers

        parts = self._parts if self._joined is None or not fits(self._joined) else [self._joined]
        can_norm = self._kernels.can_norm(int(norm.constants["WIDTH"]))
        if self._inputs.sources or self._always_paired or not can_norm or not all(map(fits, parts)):
            return NormedMatMul(norm.stage, self.bind(buffers), norms_one=False)
        variants = [self._kernels.tuning.normed_matmul(part.kind) for part in parts]
        singles = tuple(
            self._single(part, variant, buffers, more, norm.constants, includes)
            for part, variant in zip(parts, variants, strict=True)
        )
        return NormedMatMul(norm.stage, self._bind(buffers, singles), norms_one=True)

    def _bind(self, buffers: MatMulBuffers, singles: tuple[SinglePart, ...]) -> BoundMatMul:
        quantised, stage = self._quantise(buffers)

        def bind(loaded: LoadedPart) -> tuple[LoadedPart, BindGroup]:
            inputs = quantised if loaded.kind.number == "int8" else buffers.inputs
            bindings = {**_bindings(loaded, buffers), "inputs": inputs}
            return loaded, self._kernels.kernels.bind(self._kernels.source(loaded), bindings)

        bound = BoundMatMul(
            self._label, self._kernels, tuple(map(bind, self._parts)), self._counts_rows, buffers.batch, stage, singles
        )
        if self._always_paired:
            bound = replace(bound, pairs=self._bind_pairs(buffers))
        elif self._paired:
            before = tuple(map(bind, self._before_pairs))
            bound = replace(bound, with_loras=replace(bound, parts=before, singles=(), pairs=self._bind_pairs(buffers)))
        self._kernels.bound.append(bound)
        return bound

    def _bind_pairs(self, buffers: MatMulBuffers) -> BoundPairs:
        """Return the stages of the low-rank pairs of the matrices. Raises DeviceError if they exceed a binding."""
        pairs, memory, downs, ups = self._kernels.pairs, self._memory, [], []
        assert pairs is not None
        stride = round_up(pairs.rank, COLUMNS_AT_ONCE)
        plane = self._kernels.limits.max_tokens * stride
        scale_stride = 0 if pairs.scale is not None else stride
        for number, matrix in enumerate(self._paired):
            place = number * plane, stride
            down, up = (
                SegmentWeights(np.broadcast_to(np.float32(0), pairs.shapes[name]), WEIGHT_FORMATS["f32"], name)
                for name in half_names(matrix.weights.name)
            )
            inputs = matrix.inputs_start, matrix.inputs_stride
            outputs = matrix.outputs_start, matrix.outputs_stride
            operand = matrix.operand_start, matrix.operand_stride
            source = matrix.inputs_from
            downs.append(Matrix(down, *inputs, *place, Activation.SCALED, 0, scale_stride, inputs_from=source))
            after = _AFTER_PAIRS[matrix.activation]
            ups.append(Matrix(up, *place, *outputs, after, *operand, inputs_from=Activation.SCALED))
        hidden, scales = self._kernels.pair_buffers(memory, len(downs))

        def bind(
            what: str, matrices: Sequence[Matrix], operands: Buffer, inputs: Buffer, outputs: Buffer
        ) -> BoundMatMul:
            matmul = MatMul(f"{self._label}, pairs {what}", matrices, self._kernels, memory)
            return matmul.bind(MatMulBuffers(buffers.batch, operands, inputs, outputs))

        bound = BoundPairs(
            tuple(matrix.weights.name for matrix in self._paired),
            bind("down", downs, scales, buffers.inputs, hidden),
            bind("up", ups, buffers.vectors, hidden, buffers.outputs),
            buffers.inputs,
            hidden,
        )
        if len(bound.down.parts) + len(bound.up.parts) > 2:
            raise DeviceError(f"pairs of rank {pairs.rank} in all are too large for the device; expected a lower one")
        self._kernels.bound_pairs.append(bound)
        return bound

    def _single(
        self,
        part: LoadedPart,
        variant: StreamVariant,
        buffers: MatMulBuffers,
        more_buffers: Mapping[str, Buffer],
        constants: Mapping[str, Constant] = MappingProxyType({}),
        includes: Mapping[str, Include] = MappingProxyType({}),
    ) -> SinglePart:
        if part.join_constants:
            includes = {**includes, "one_format": "two_formats"}
        kernel = self._kernels.get(variant, part.format, {**part.constants, **constants}, includes)
        bindings = {**_bindings(part, buffers), **more_buffers}
        return SinglePart(part, variant, kernel, self._kernels.kernels.bind(kernel.source, bindings))

    def _join(self) -> LoadedPart | None:
        """Return two parts, in blocks and in floats, as one for single tokens; None if the tuning joins none."""
        if not self._kernels.tuning.joins_formats or len(self._parts) != 2:
            return None
        blocks, floats = self._parts
        num_segments = len(blocks.places) + len(floats.places)
        if (
            blocks.format.name not in KEPT_FORMATS
            or blocks.kind.number != "f32"
            or floats.format.name not in ("f16", "f32")
        ):
            return None
        if num_segments > MAX_SEGMENTS:
            return None
        after = [replace(place, first_row=place.first_row + blocks.num_rows) for place in floats.places]
        places = (*blocks.places, *after)
        return replace(
            blocks,
            num_rows=blocks.num_rows + floats.num_rows,
            num_weights=blocks.num_weights + floats.num_weights,
            weight_bytes=blocks.weight_bytes + floats.weight_bytes,
            weights={**blocks.weights, "floats": floats.weights["weights"]},
            places=places,
            segments=self._upload_segments(places),
            join_constants={"FLOATS_FROM": blocks.num_rows, "WIDE": floats.format.name == "f32"},
        )

    def _quantise(self, buffers: MatMulBuffers) -> tuple[Buffer, KernelStage | None]:
        """Return the buffer of the inputs in bytes, and the stage that fills it; without such, the inputs and None."""
        if not self._inputs.sources:
            return buffers.inputs, None
        packed = self._kernels.packed_inputs(self._memory, self._inputs.token_bytes)
        stage = self._inputs.stage(
            self._kernels.kernels, self._memory, inputs=buffers.inputs, packed=packed, counts_rows=self._counts_rows
        )
        return packed, stage

    def _load(self, part: SegmentPart, memory: Memory) -> LoadedPart:
        buffers = create_weight_buffers(memory, self._label, part.format, part.num_blocks)
        for segment in part.segments:
            upload_rows(memory, buffers, part.format, segment.rows, segment.weights_start)
        places = tuple(segment.place for segment in part.segments)
        segments = self._upload_segments(places)
        weight_bytes = part.num_blocks * sum(part.format.block_bytes.values())
        columns = max(segment.matrix.num_columns for segment in part.segments)
        kind = MatMulClass.of(part.format.name, part.num_rows, columns, self._kernels.number_of(part.format))
        return LoadedPart(part.format, part.num_rows, part.num_weights, weight_bytes, buffers, places, segments, kind)

    def _bare(self, part: SegmentPart, loaded: LoadedPart) -> LoadedPart:
        """Return a loaded part with sums as the outputs of paired matrices, whose activation follows their pairs."""
        activations = (self._activation(segment.matrix) for segment in part.segments)
        places = tuple(
            replace(place, activation=activation) for place, activation in zip(loaded.places, activations, strict=True)
        )
        return replace(loaded, places=places, segments=self._upload_segments(places))

    def _activation(self, matrix: Matrix) -> Activation:
        """Return the activation of a matrix before its low-rank pair is added, if it has one."""
        own, names = matrix.activation, [paired.weights.name for paired in self._paired]
        return own if matrix.weights.name not in names or _AFTER_PAIRS[own] is own else Activation.NONE

    def _upload_segments(self, places: Sequence[SegmentPlace]) -> Buffer:
        """Upload a struct MatMul of segments.wgsl with these places, and return its buffer."""
        table = [int(self._counts_rows), len(places)]
        table += [word for place in places for word in place.pack()]
        table += [0] * (2 + MAX_SEGMENTS * SEGMENT_WORDS - len(table))
        segments = self._memory.create_buffer(f"{self._label} segments", 4 * len(table))
        self._memory.upload(segments, 0, np.array(table, np.uint32))
        return segments


def _bindings(loaded: LoadedPart, buffers: MatMulBuffers) -> dict[str, Buffer]:
    return {
        "batch": buffers.batch,
        "matmul": loaded.segments,
        **loaded.weights,
        "vectors": buffers.vectors,
        "outputs": buffers.outputs,
    }


@dataclass(frozen=True, slots=True)
class SinglePart:
    """The matrices that one dispatch multiplies with a single token, and a kernel for that."""

    loaded: LoadedPart
    variant: StreamVariant
    kernel: Kernel
    bind_group: BindGroup


@dataclass(frozen=True, slots=True)
class BoundMatMul:
    """The stage that multiplies the matrices of a `MatMul` with given input and output buffers."""

    label: str
    kernels: MatMulKernels
    parts: tuple[tuple[LoadedPart, BindGroup], ...]  # one a dispatch
    counts_rows: bool
    batch: Buffer  # says how many tokens and rows a step has
    quantise: KernelStage | None  # the stage that quantises the inputs, if some part multiplies bytes
    singles: tuple[SinglePart, ...]  # of steps of one token, in place of `parts`, unless it is empty
    pairs: BoundPairs | None = None
    with_loras: BoundMatMul | None = None  # for steps in which some token has a LoRA, if the matrices may have pairs

    @property
    def weight_bytes(self) -> int:
        return sum(part.weight_bytes for part, _ in self.parts)

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        """Yield a dispatch for each part, after one to quantise the inputs if needed. A step must not be empty."""
        if step.has_loras and self.with_loras is not None:
            yield from self.with_loras.dispatches(step)
            return
        yield from self._own_dispatches(step)
        if self.pairs is not None:
            yield from self.pairs.down.dispatches(step)
            yield from self.pairs.up.dispatches(step)

    def _own_dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        count = step.num_rows if self.counts_rows else step.num_tokens
        if self.singles and count == 1:
            for single in self.singles:
                yield self._dispatch(single.loaded, single.bind_group, single.variant, single.kernel, 1)
            return
        if self.quantise is not None:
            yield from self.quantise.dispatches(step)
        for part, bind_group in self.parts:
            yield self.dispatch(part, bind_group, self.kernels.tuning.matmul(count, part.kind), count)

    def dispatch(self, part: LoadedPart, bind_group: BindGroup, variant: MatMulVariant, count: int) -> Dispatch:
        """Return the dispatch that multiplies `part`, a part of the matrices, with `count` tokens or logit rows."""
        kernel = self.kernels.get(variant, part.format, part.constants)
        return self._dispatch(part, bind_group, variant, kernel, count)

    def _dispatch(
        self, part: LoadedPart, bind_group: BindGroup, variant: MatMulVariant, kernel: Kernel, count: int
    ) -> Dispatch:
        tiles = -(-count // variant.tokens)
        moved_bytes, operations = tiles * part.weight_bytes, 2 * count * part.num_weights
        return Dispatch(self.label, kernel, bind_group, part.num_rows // variant.rows, tiles, moved_bytes, operations)


@dataclass(frozen=True, slots=True)
class BoundPairs:
    """The stages that add the low-rank pairs of a matmul's matrices to their sums."""

    matrices: tuple[str, ...]  # which have a pair, in the order of the parts
    down: BoundMatMul  # hidden = scale * A inputs
    up: BoundMatMul  # adds B hidden
    inputs: Buffer  # of the matmul
    hidden: Buffer  # [matrices, T, R rounded up to 8] f32


@dataclass(frozen=True, slots=True)
class NormBefore:
    """A layer norm with its token shift, for a matmul of its results."""

    stage: KernelStage
    x: Buffer  # the residual stream
    state: Buffer  # the states of the layer
    constants: Mapping[str, Constant]  # of norm_inputs.wgsl
    keeps_mixes: bool  # if other stages read the mixes, too


@dataclass(frozen=True, slots=True)
class NormedMatMul:
    """The stage of a layer norm with its token shift, and of the matmul that multiplies their results.

    If the tuning has a kernel for it, every workgroup of the matmul norms a single token itself, in place of a dispatch
    before. The mixes are then stored only if `NormBefore.keeps_mixes`.
    """

    norm: KernelStage
    matmul: BoundMatMul
    norms_one: bool  # if the matmul norms a single token itself

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        if step.num_tokens > 1 or not self.norms_one or (step.has_loras and self.matmul.with_loras is not None):
            yield from self.norm.dispatches(step)
        yield from self.matmul.dispatches(step)
