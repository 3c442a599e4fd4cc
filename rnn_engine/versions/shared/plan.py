"""Functions and classes with which all RWKV versions build the stages (kernel dispatches) of a layer on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np

from rnn_engine.errors import DeviceError
from rnn_engine.forward.context import BuildContext, NormShift, PackedVectors, norm_shift_stage
from rnn_engine.forward.matmul import BoundMatMul, MatMul, MatMulBuffers, NormBefore, NormedMatMul
from rnn_engine.forward.segments import Activation, Matrix, SegmentPlace, SegmentWeights
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.forward.step import StepSize
from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, round_up
from rnn_engine.gpu import Buffer, Dispatch
from rnn_engine.types import F32, Model
from rnn_engine.versions.shared.layout import HeadsShape, RwkvShape
from rnn_engine_shaders import Constant, Include

AnyHeadsShape = TypeVar("AnyHeadsShape", bound=HeadsShape)

MAX_HEAD_SIZE: Final = 256  # a head has a thread a row, and every device allows this many in a workgroup
_GROUP_NORM_WEIGHT: Final = "att.ln_x.weight"
_HEAD_BY_LANES: Final = 64  # the head size that head_by_lanes.wgsl requires; all published models have it


def shape_for_gpu(model: Model, kind: type[AnyHeadsShape]) -> AnyHeadsShape:
    """Return the shape of a model, of the class `kind`. Raises DeviceError if its heads are too large for a GPU."""
    shape = model.shape
    assert isinstance(shape, kind)
    if shape.head_size > MAX_HEAD_SIZE:
        raise DeviceError(f"head size {shape.head_size} is not supported on a GPU; expected at most {MAX_HEAD_SIZE}")
    return shape


class LayerBuilder:
    """Builds one layer's stages while a model is loaded. A plane of an activation buffer is [T, D] floats."""

    def __init__(self, context: BuildContext, layer: int, vectors: PackedVectors) -> None:
        self.context = context
        self.layer = layer
        self.vectors = vectors
        self.width = context.model.shape.width
        self.plane = context.limits.max_tokens * self.width

    @property
    def is_first(self) -> bool:
        """True for the first layer of the whole model, also where parts of it are loaded."""
        return self.layer == 0 and self.context.has_embedding

    def label(self, what: str) -> str:
        return f"layer {self.layer} {what}"

    def weights(self, name: str, *, transposed: bool = False) -> SegmentWeights:
        """Return the matrix `blocks.N.{name}` [R, C], or [C, R] if `transposed`."""
        return self.context.weights(f"blocks.{self.layer}.{name}", transposed=transposed)

    def norm_shift(self, what: str, norm_shift: NormShift, outputs: Buffer, x: Buffer | None = None) -> KernelStage:
        """Return the stage of a norm and its token shift; see `rnn_engine.forward.context.norm_shift_stage`."""
        return norm_shift_stage(self.context, self.layer, self.label(what), self.vectors, norm_shift, outputs, x)

    def matmul(
        self, what: str, matrices: Sequence[Matrix], inputs: Buffer, outputs: Buffer, operands: Buffer | None = None
    ) -> BoundMatMul:
        """Return the stage that multiplies `inputs` by `matrices`; `operands` are by default the layer's vectors."""
        operands = operands or self.vectors.buffer
        return self.context.matmul_stage(self.label(what), matrices, operands, inputs, outputs)

    def normed_matmul(
        self,
        norm_what: str,
        norm_shift: NormShift,
        what: str,
        matrices: Sequence[Matrix],
        mixes: Buffer,
        outputs: Buffer,
        *,
        keeps_mixes: bool = False,
    ) -> NormedMatMul:
        """Return the stage of one of the layer's norms with its token shift, and of the matmul that reads its mixes.

        `mixes` is as in `norm_shift`. Other stages may read what this one writes there only if `keeps_mixes`.
        """
        context = self.context
        norm = NormBefore(
            self.norm_shift(norm_what, norm_shift, mixes),
            x=context.buffers.x,
            state=context.states[self.layer],
            constants=norm_shift.forward_constants(context, self.vectors, keeps_mixes=keeps_mixes),
            keeps_mixes=keeps_mixes,
        )
        buffers = MatMulBuffers(context.buffers.batch, self.vectors.buffer, mixes, outputs)
        return MatMul(self.label(what), matrices, context.matmuls, context.memory).bind_normed(buffers, norm)

    def alone(self, name: str, activation: Activation, *, inputs_from: Activation = Activation.NONE) -> Matrix:
        """Return the layer's weight matrix `name` for a matmul that has no other matrix in its buffers."""
        weights = self.weights(name)
        rows, columns = weights.values.shape
        return Matrix(weights, 0, round_up(columns, 8), 0, round_up(rows, 8), activation, inputs_from=inputs_from)

    def output(self, mixed: Buffer) -> BoundMatMul:
        """Return the stage that adds the output matrix times `mixed` [T, D] to the residual stream."""
        matrix = self.alone("att.output.weight", Activation.RESIDUAL)
        return self.matmul("output", [matrix], mixed, self.context.buffers.x)

    def between_planes(self, name: str, source: int, target: int, activation: Activation = Activation.NONE) -> Matrix:
        """Return the layer's weight matrix `name` [D, D], or fewer rows, for a matmul on planes of larger buffers.

        It reads plane `source` of the inputs and writes plane `target` of the outputs. A bias of the matrix, if the
        layer's vectors have one, is added.
        """
        bias = self.vectors.starts.get(f"{name.removesuffix('weight')}bias")
        activation = activation if bias is None else Activation.BIASED
        places = (source * self.plane, self.width, target * self.plane, self.width)
        return Matrix(self.weights(name), *places, activation, bias or 0)


class ScratchBuffers:
    """The device buffers for activations within a time mix that has no low-rank adapters. All layers share them."""

    def __init__(self, context: BuildContext, num_mixes: int, num_projections: int) -> None:
        plane = 4 * context.limits.max_tokens * context.model.shape.width
        self.mixes = context.memory.create_buffer("mixes", num_mixes * plane)  # [M, T, D]
        self.projected = context.memory.create_buffer("projected", num_projections * plane)  # [P, T, D]
        self.mixed = context.memory.create_buffer("mixed", plane)  # [T, D]


def block_lookup(model: Model, layer: int) -> Callable[[str], F32]:
    """Return a function that returns a tensor of the given layer as f32, by its name without the prefix `blocks.N.`."""
    return lambda name: model.tensor(f"blocks.{layer}.{name}").astype(np.float32)


def static_mixes(lookup: Callable[[str], F32], names: Sequence[str]) -> dict[str, F32]:
    """Return 1 - m for token shift vectors m, since kernels compute x + (previous - x) * (1 - m)."""
    return {name: 1 - lookup(name) for name in names}


class GatedChannelMix:
    """Builds the stages of the channel mix of RWKV-4 to RWKV-6, whose output is gated by the receptance."""

    def __init__(self, context: BuildContext, mixes: Buffer) -> None:
        """Allocate the hidden activations. The stages overwrite two planes of `mixes`, at least [2, T, D]."""
        shape, tokens = context.model.shape, context.limits.max_tokens
        assert isinstance(shape, RwkvShape)
        self.mixes = mixes
        self._hidden_stride = round_up(shape.ffn_width, 8)
        self.receptance_start = tokens * self._hidden_stride
        size = 4 * (self.receptance_start + tokens * shape.width)
        self.hidden = context.memory.create_buffer("ffn hidden", size)  # [T, F], then the receptance [T, D]

    def stages(self, builder: LayerBuilder, norm: NormShift) -> tuple[Stage, ...]:
        """Return a layer's two stages: norm with key and receptance, whose mixes `norm` has, and value."""
        value = self.value(builder, Activation.SCALED_RESIDUAL)
        return (
            self.key(builder, norm),
            builder.matmul("value", [value], self.hidden, builder.context.buffers.x, operands=self.hidden),
        )

    def key(self, builder: LayerBuilder, norm: NormShift) -> NormedMatMul:
        """Return the stage that computes the hidden activations and the receptance of one layer, after its norm."""
        width = builder.width
        key = Matrix(builder.weights("ffn.key.weight"), 0, width, 0, self._hidden_stride, Activation.SQUARED_RELU)
        receptance = Matrix(
            builder.weights("ffn.receptance.weight"),
            inputs_start=builder.plane,
            inputs_stride=width,
            outputs_start=self.receptance_start,
            outputs_stride=width,
            activation=Activation.SIGMOID,
        )
        return builder.normed_matmul("ffn norm", norm, "key and receptance", [key, receptance], self.mixes, self.hidden)

    def value(self, builder: LayerBuilder, activation: Activation) -> Matrix:
        """Return one layer's value matrix, with the receptance as the operand of its activation."""
        return Matrix(
            builder.weights("ffn.value.weight"),
            inputs_start=0,
            inputs_stride=self._hidden_stride,
            outputs_start=0,
            outputs_stride=builder.width,
            activation=activation,
            operand_start=self.receptance_start,
            operand_stride=builder.width,
            inputs_from=Activation.SQUARED_RELU,
        )


@dataclass(frozen=True, slots=True)
class Decay:
    """The position in a device buffer of the decay factors that a wkv recurrence reads, with offsets in floats.

    The factors are one vector for all tokens or one for each.
    """

    buffer: Buffer
    start: int
    stride: int  # from one token to the next; 0 if all tokens have the same decay

    def constants(self) -> dict[str, Constant]:
        return {"DECAY_START": self.start, "DECAY_STRIDE": self.stride}


def bonus_recurrence(
    builder: LayerBuilder,
    shape: HeadsShape,
    *,
    bonus: str,
    projected: Buffer,
    decay: Decay,
    mixed: Buffer,
    has_gate: bool,
    traced: Buffer | None = None,
) -> KernelStage:
    """Return the stage of the wkv recurrence of RWKV-5 and RWKV-6, including its group norm and gate.

    It reads `projected` [r, k, v, g] and writes `mixed`. `bonus` is the name of u [D] in the layer's vectors, which a
    QRWKV6 lacks. For `traced` see `head_stage`.
    """
    constants = {**bonus_constants(builder, shape, bonus, has_gate=has_gate), **decay.constants()}
    return head_stage(
        builder, shape, "wkv5", constants, {"projected": projected, "decay": decay.buffer, "mixed": mixed}, traced
    )


def bonus_constants(builder: LayerBuilder, shape: HeadsShape, bonus: str, *, has_gate: bool) -> dict[str, Constant]:
    """Return the constants of wkv5.wgsl for a layer whose bonus u [D] is the vector `bonus`, if it has one."""
    u = builder.vectors.starts.get(bonus)
    heads = {"HEADS_A_KV_HEAD": shape.heads_a_kv_head}
    return {"U": u or 0, "HAS_BONUS": u is not None, "HAS_GATE": has_gate, **heads}


@dataclass(frozen=True, slots=True)
class GatedRecurrence:
    """The stage of the second halves of a layer's adapters, and of the recurrence that reads their outputs.

    If the tuning says so, the recurrence of a single token computes them itself, in place of a dispatch before.
    """

    gates: BoundMatMul
    recurrence: KernelStage
    alone: KernelStage | None  # the recurrence that computes them itself

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        if self.alone is None or step.num_tokens > 1:
            yield from self.gates.dispatches(step)
            yield from self.recurrence.dispatches(step)
        else:
            for dispatch in self.alone.dispatches(step):
                yield replace(dispatch, moved_bytes=dispatch.moved_bytes + self.gates.weight_bytes)


def can_compute_gates(context: BuildContext, gates: BoundMatMul) -> bool:
    """Return True if the recurrence of a single token can compute `gates`, the second halves of adapters, itself.

    That needs matrices in one part, in a format of one buffer: compilers keep registers in memory for two.
    """
    return context.tuning.adapter_loads > 0 and len(gates.parts) == 1 and len(gates.parts[0][0].weights) == 1


def adapter_constants(name: str, place: SegmentPlace | None, *, has_bias: bool) -> dict[str, Constant]:
    """Return the constants of the adapter `name` for adapter_rows.wgsl. `place` is that of its second half.

    They are 0 if the layer lacks the adapter.
    """
    constants = {
        "START": place.weights_start if place else 0,
        "PANEL_BLOCKS": place.panel_blocks if place else 0,
        "EIGHTS": -(-place.num_columns // COLUMNS_AT_ONCE) if place else 0,
        "INNER": place.inputs_start if place else 0,
    }
    if has_bias:
        constants["BIAS"] = place.operand_start if place else 0
    return {f"{name.upper()}_{constant}": value for constant, value in constants.items()}


def stage_with_adapters(
    builder: LayerBuilder,
    shape: HeadsShape,
    kernel: str,
    gates: BoundMatMul,
    constants: Mapping[str, Constant],
    buffers: Mapping[str, Buffer],
    includes: Mapping[str, Include],
) -> KernelStage:
    """Return the stage of a wkv recurrence of a single token that computes `gates`, see `can_compute_gates`, itself.

    The other arguments are those of `head_stage`.
    """
    ((part, _),) = gates.parts
    tuning = builder.context.tuning
    turn = COLUMNS_AT_ONCE * tuning.adapter_loads * head_shares(builder.context, shape)
    return head_stage(
        builder,
        shape,
        kernel,
        {**constants, "AT_ONCE": tuning.adapter_loads},
        {**buffers, **part.weights},
        more_includes={**includes, **tuning.weight_includes(part.format)},
        waits=sum(-(-place.num_columns // turn) for place in part.places),
    )


def head_stage(
    builder: LayerBuilder,
    shape: HeadsShape,
    kernel: str,
    constants: Mapping[str, Constant],
    buffers: Mapping[str, Buffer],
    traced: Buffer | None = None,
    more_includes: Mapping[str, Include] = MappingProxyType({}),
    *,
    waits: int = 0,
) -> KernelStage:
    """Return the stage of a wkv recurrence with the layer's group norm, if any: a workgroup per head and token run.

    If the device lets lanes share what they load and heads have size 64, it uses the kernel `{kernel}_by_lanes`.

    With `traced`, it also writes some of the recurrence's vectors to planes of this buffer, for a backward pass (see
    traced_planes.wgsl). The state then stays as it was.
    """
    context, num_heads = builder.context, shape.num_heads
    name, includes = head_kernel(context, shape, kernel)
    common = {**head_sizes(shape), **state_constants(context), **group_norm_constants(builder, shape)}
    if name == kernel and (shares := head_shares(context, shape)) > 1:
        common["SHARES"] = shares
    elif name == kernel:
        includes["shares"] = "one_share"
    common["HAS_GROUP_NORM"] = _GROUP_NORM_WEIGHT in builder.vectors.starts
    return context.kernel_stage(
        builder.label("recurrence"),
        name,
        {**common, **constants},
        {
            "vectors": builder.vectors.buffer,
            "state": context.states[builder.layer],
            **buffers,
            **({} if traced is None else {"traced": traced}),
        },
        lambda step: (num_heads, step.num_runs),
        {"TRACE": "trace_nothing" if traced is None else "trace_vectors", **includes, **more_includes},
        state_bytes=4 * shape.width * shape.head_size,
        waits=waits,
    )


def head_kernel(context: BuildContext, shape: HeadsShape, kernel: str) -> tuple[str, dict[str, Include]]:
    """Return the name of the variant of `kernel`, which computes heads of a model with this shape, and its includes."""
    if context.tuning.broadcast and shape.head_size == _HEAD_BY_LANES:
        return f"{kernel}_by_lanes", {}
    return kernel, {"VECTORS": "vectors_broadcast" if context.tuning.broadcast else "vectors_direct"}


def head_shares(context: BuildContext, shape: HeadsShape) -> int:
    """Return how many threads share a row of a head's state: at most as many as the tuning says, all of one size."""
    eighths = -(-shape.head_size // 8)
    fits = (count for count in (4, 2) if eighths % count == 0 and 8 * eighths * count <= MAX_HEAD_SIZE)
    return next((count for count in fits if count <= context.tuning.head_shares), 1)


def head_sizes(shape: HeadsShape) -> dict[str, Constant]:
    return {"WIDTH": shape.width, "HEAD_SIZE": shape.head_size}


def state_constants(context: BuildContext) -> dict[str, Constant]:
    """Return the constants of the place of the wkv matrices in a slot's state."""
    return {"STATE_STRIDE": context.state_layout.stride, "WKV_OFFSET": context.state_layout.offsets["wkv"]}


def group_norm_constants(builder: LayerBuilder, shape: HeadsShape) -> dict[str, Constant]:
    """Return the constants of the group norm of the layer's heads, with places that are unread if it has none."""
    starts = builder.vectors.starts
    return {
        "GROUP_NORM_WEIGHT": starts.get(_GROUP_NORM_WEIGHT, 0),
        "GROUP_NORM_BIAS": starts.get("att.ln_x.bias", 0),
        "EPSILON": shape.group_norm_epsilon,
    }
