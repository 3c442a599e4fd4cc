"""Functions and classes with which the versions build the backward stages of a layer on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rnn_engine.backward.context import BackwardContext, BackwardLayer
from rnn_engine.backward.matmul import matmul_backward
from rnn_engine.forward.context import NormShift
from rnn_engine.forward.matmul import BoundMatMul
from rnn_engine.forward.segments import Activation
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer
from rnn_engine.versions.shared.layout import HeadsShape
from rnn_engine.versions.shared.plan import (
    Decay,
    GatedChannelMix,
    LayerBuilder,
    group_norm_constants,
    head_kernel,
    head_sizes,
    state_constants,
)
from rnn_engine_shaders import Constant

_TRACED_PLANES: Final = 7  # of traced_planes.wgsl
_KEPT_EVERY: Final = 16  # as in kept_gradients.wgsl
_VECTOR_THREADS: Final = 64  # of a workgroup of vector_gradient.wgsl


def norm_shift_backward(
    context: BackwardContext, builder: LayerBuilder, what: str, norm_shift: NormShift, x: Buffer, d_mixes: Buffer
) -> Iterator[KernelStage]:
    """Yield the stages that add the gradient through one of the layer's norms and its token shift to `context.dx`.

    `x` is the input of the norm; `d_mixes` has the gradients of its mixes, in the layout of the mixes. The vectors of
    the mixes get their gradients, too, if they are trained.
    """
    if context.vectors is not None:
        difference = replace(norm_shift, mixes=(), keeps_difference=True)
        yield builder.norm_shift(f"{what}, difference", difference, context.vectors.difference, x)
        yield from vectors_backward(context, builder, norm_shift.mixes, d_mixes, difference=context.vectors.difference)
    constants = {**norm_shift.constants(context.forward, builder.vectors), "TRAINS_SHIFT": context.trains_shifts}
    buffers = {
        "x": x,
        "vectors": builder.vectors.buffer,
        "d_mixes": d_mixes,
        "dx": context.dx,
        "state_gradients": context.state_gradients,
    }
    yield context.forward.kernel_stage(
        builder.label(f"{what}, backward"), "norm_shift_backward", constants, buffers, lambda step: (step.num_tokens, 1)
    )


def vectors_backward(
    context: BackwardContext,
    builder: LayerBuilder,
    names: Sequence[str],
    gradients: Buffer,
    *,
    plane: int = 0,
    difference: Buffer | None = None,
) -> Iterator[KernelStage]:
    """Yield the stage that adds the gradients of the vectors `names`, side by side in the layer's, if they are trained.

    `gradients` has those of each token, a plane [T, D] a vector from `plane` on. If the vectors are mixes, these are
    the gradients of what they mix, and the second plane of `difference` is multiplied with them.
    """
    if context.vectors is None:
        return
    starts = {f"blocks.{builder.layer}.{name}": start for name, start in builder.vectors.starts.items()}
    trained = context.vectors.train(builder.layer, starts, builder.vectors.buffer)
    places = {"START": builder.vectors.starts[names[0]], "PLANE": plane, "MIXES": difference is not None}
    buffers = {"gradients": gradients, "difference": difference or gradients, "gradient": trained.gradient}
    groups = -(-builder.width // _VECTOR_THREADS), len(names)
    yield context.forward.kernel_stage(
        builder.label(f"{names[0]} to {names[-1]}, gradient"),
        "vector_gradient",
        {"THREADS": _VECTOR_THREADS, "WIDTH": builder.width, **places},
        {"settings": context.vectors.settings, **buffers},
        lambda _: groups,
    )


def mixes_again(
    context: BackwardContext, builder: LayerBuilder, what: str, norm_shift: NormShift, x: Buffer, mixes: Buffer
) -> Iterator[KernelStage]:
    """Yield the stage that computes the mixes of a norm once more, to `mixes`, if the gradients of pairs need them."""
    if context.pairs is not None:
        yield builder.norm_shift(f"{what} again", norm_shift, mixes, x)


def keep_x(context: BackwardContext, kept: Buffer) -> KernelStage:
    """Return the stage that copies the residual stream to `kept` [T, D]."""
    forward = context.forward
    constants = {"THREADS": forward.tuning.norm_threads, "WIDTH": forward.model.shape.width, "START": 0}
    kernel = forward.kernels.get("keep_embedding", constants)
    bind_group = forward.kernels.bind(kernel.source, {"x": forward.buffers.x, "kept": kept})
    return KernelStage("keep x", kernel, bind_group, lambda step: (step.num_tokens, 1))


@dataclass(frozen=True, slots=True)
class HeadBuffers:
    """The device buffers of a recurrence, and those of the gradients of its inputs."""

    projected: Buffer  # r, k, v and perhaps more: [P, T, D]
    decay: Decay
    d_projected: Buffer
    d_decay: Buffer  # [T, D], from its first float on


class RecurrenceBackward:
    """Builds the backward stages of the recurrences of all layers, and owns the buffers that they share.

    `traced` [7, T, D] is for `rnn_engine.versions.shared.plan.head_stage`. Before the first backward stage of a layer,
    its first plane must hold the gradient of the recurrence's output `mixed`.
    """

    def __init__(self, context: BackwardContext, shape: HeadsShape, *, removes_keys: bool) -> None:
        """Allocate the buffers. RWKV-7 `removes_keys` from the state, see wkv_rows_backward.wgsl."""
        tokens, runs = context.forward.limits.max_tokens, context.forward.limits.num_slots
        create = context.forward.memory.create_buffer
        self.traced = create("traced", 4 * tokens * (_TRACED_PLANES * shape.width + shape.num_heads))
        kept_floats = shape.num_heads * round_up(shape.head_size, 8) ** 2
        self._kept = create("kept state gradients", 4 * (tokens // _KEPT_EVERY + runs) * kept_floats)
        self._context = context
        self._shape = shape
        self._removes_keys = removes_keys

    def on_tokens(
        self,
        builder: LayerBuilder,
        kernel: str,
        constants: Mapping[str, Constant],
        heads: HeadBuffers,
        buffers: Mapping[str, Buffer],
    ) -> KernelStage:
        """Return the stage of a kernel that runs a workgroup for each head and token."""
        shape, num_heads = self._shape, self._shape.num_heads
        threads = min(builder.context.tuning.norm_threads, 1 << (shape.head_size - 1).bit_length())
        common = {
            "vectors": builder.vectors.buffer,
            "projected": heads.projected,
            "traced": self.traced,
            "d_projected": heads.d_projected,
        }
        return builder.context.kernel_stage(
            builder.label(_describe(kernel.partition("_")[2])),
            kernel,
            {"THREADS": threads, **head_sizes(shape), **constants},
            {**common, **buffers},
            lambda step: (num_heads, step.num_tokens),
        )

    def to_state(self, builder: LayerBuilder, heads: HeadBuffers) -> Iterator[KernelStage]:
        """Yield the stages that compute the gradients of the initial state, of v and of k."""
        yield self._on_runs(builder, "rows", {}, heads, {})
        buffers = {"d_gates": heads.d_decay, "kept": self._kept, "state_gradients": self._context.state_gradients}
        yield self._on_runs(builder, "columns", state_constants(builder.context), heads, buffers)

    def to_decay(self, builder: LayerBuilder, heads: HeadBuffers) -> KernelStage:
        """Return the stage that computes the gradients of r and of the decay, after those of `to_state`."""
        buffers = {"d_gates": heads.d_decay, "kept": self._kept, "state": builder.context.states[builder.layer]}
        return self._on_runs(builder, "decay", state_constants(builder.context), heads, buffers)

    def _on_runs(
        self,
        builder: LayerBuilder,
        part: str,
        constants: Mapping[str, Constant],
        heads: HeadBuffers,
        buffers: Mapping[str, Buffer],
    ) -> KernelStage:
        shape, num_heads = self._shape, self._shape.num_heads
        name, includes = head_kernel(builder.context, shape, f"wkv_{part}_backward")
        common = {
            "projected": heads.projected,
            "gates": heads.decay.buffer,
            "traced": self.traced,
            "d_projected": heads.d_projected,
        }
        return builder.context.kernel_stage(
            builder.label(f"recurrence {part}, backward"),
            name,
            {**head_sizes(shape), "REMOVES_KEYS": self._removes_keys, **heads.decay.constants(), **constants},
            {**common, **buffers},
            lambda step: (num_heads, step.num_runs),
            includes,
        )


class BonusRecurrenceBackward(RecurrenceBackward):
    """Builds the backward stages of the recurrences of RWKV-5 and RWKV-6, with the group norm and the gate."""

    def __init__(self, context: BackwardContext, shape: HeadsShape, *, bonus: str, has_gate: bool) -> None:
        """Allocate the buffers. `bonus` is the name of u [D] in the layer's vectors."""
        super().__init__(context, shape, removes_keys=False)
        self._bonus = bonus
        self._has_gate = has_gate

    def to_state(self, builder: LayerBuilder, heads: HeadBuffers) -> Iterator[KernelStage]:
        """Yield the stages that compute the gradients of the initial state, of v and of the gate."""
        constants = {
            "U": builder.vectors.starts[self._bonus],
            "HAS_GATE": self._has_gate,
            **group_norm_constants(builder, self._shape),
        }
        yield self.on_tokens(builder, "wkv5_outputs_backward", constants, heads, {})
        yield from super().to_state(builder, heads)

    def to_inputs(self, builder: LayerBuilder, heads: HeadBuffers) -> Iterator[KernelStage]:
        """Yield the stages that compute the gradients of r, of k and of w in decay = exp(-exp(w))."""
        yield self.to_decay(builder, heads)
        constants = {"U": builder.vectors.starts[self._bonus], **heads.decay.constants()}
        buffers = {"gates": heads.decay.buffer, "d_gates": heads.d_decay}
        yield self.on_tokens(builder, "wkv5_inputs_backward", constants, heads, buffers)


class GatedChannelMixBackward(GatedChannelMix):
    """The channel mix of RWKV-5 and 6 with its backward pass, for which the value is kept by itself."""

    def __init__(self, context: BackwardContext, mixes: Buffer, d_mixes: Buffer, spare: Buffer) -> None:
        """Allocate the buffers. The stages overwrite two planes of `mixes`, of their gradients, and of `spare`."""
        super().__init__(context.forward, mixes)
        self._d_mixes = d_mixes
        self._spare = spare
        self._d_hidden = context.forward.memory.create_buffer("gradients of ffn hidden", self.hidden.size)
        self._context = context

    def layer(self, builder: LayerBuilder, norm: NormShift) -> BackwardLayer:
        """Return the stages of one layer's channel mix. Its activations are kept from the way forward.

        Beside pairs, which take memory, the hidden ones are computed again.
        """
        context, x, create = self._context, builder.context.buffers.x, builder.context.memory.create_buffer
        if builder.layer > 0 and context.pairs is None:
            self.hidden = create("ffn hidden", self.hidden.size)
        kept = create("value", x.size)  # [T, D], then its gradient
        middle = create("x after the time mix", x.size)  # [T, D]
        key = self.key(builder, norm)
        value = builder.matmul("value", [self.value(builder, Activation.NONE)], self.hidden, kept)
        receptance = {"hidden": self.hidden, "value": kept}
        gradients = {"dx": context.dx, "d_hidden": self._d_hidden}
        ffn = context, builder, "ffn norm", norm, middle
        return BackwardLayer(
            forward=(
                keep_x(context, middle),
                key,
                value,
                self._on_tokens(builder, "gated_residual", {**receptance, "x": x}),
            ),
            recompute=() if context.pairs is None else (*mixes_again(*ffn, self.mixes), key.matmul),
            backward=(
                self._on_tokens(builder, "gated_residual_backward", {**receptance, **gradients}),
                matmul_backward(context, value, kept, self._d_hidden, self.hidden),
                *mixes_again(*ffn, self._spare),
                matmul_backward(context, key.matmul, self._d_hidden, self._d_mixes, self._spare),
                *norm_shift_backward(context, builder, "ffn norm", norm, middle, self._d_mixes),
            ),
        )

    def _on_tokens(self, builder: LayerBuilder, kernel: str, buffers: Mapping[str, Buffer]) -> KernelStage:
        constants = {"RECEPTANCE": self.receptance_start}
        return on_tokens(builder, kernel, constants, buffers)


class BonusLayersBackward:
    """Builds the layers of RWKV-5 and RWKV-6 with their backward pass, and owns the buffers that these share."""

    def __init__(
        self,
        context: BackwardContext,
        shape: HeadsShape,
        *,
        mixes: Buffer,
        projected: Buffer,
        bonus: str,
        has_gate: bool,
    ) -> None:
        """Allocate the buffers, for the activations `mixes` and `projected` of the time mix.

        `bonus` is the name of u [D] in the layer's vectors.
        """
        create = context.forward.memory.create_buffer
        self.projected = projected
        self.d_mixes = create("gradients of mixes", mixes.size)
        self.d_projected = create("gradients of projected", projected.size)
        self.d_decay = create("gradient of the decay", 4 * context.forward.limits.max_tokens * shape.width)
        self._context = context
        self._channel_mix = GatedChannelMixBackward(context, mixes, self.d_mixes, spare=self.d_projected)
        self._recurrence = BonusRecurrenceBackward(context, shape, bonus=bonus, has_gate=has_gate)

    @property
    def traced(self) -> Buffer:
        """The buffer for the recurrence of the time mix; see `rnn_engine.versions.shared.plan.head_stage`."""
        return self._recurrence.traced

    def layer(
        self,
        builder: LayerBuilder,
        time_mix: Sequence[Stage],
        output: BoundMatMul,
        decay: Decay,
        mixes_backward: Iterator[Stage],
        norms: tuple[NormShift, NormShift],
    ) -> BackwardLayer:
        """Return the stages of one layer, whose time mix has the stages `time_mix`, of which `output` is the last.

        `mixes_backward` yields the stages that turn `d_projected` and `d_decay` into `d_mixes`. They are not needed in
        the first layer, whose input needs no gradient, except for its token shift. `norms` are those of both mixes.
        """
        att_norm, ffn_norm = norms
        channel_mix = self._channel_mix.layer(builder, ffn_norm)
        time_mix_backward = self._time_mix_backward(builder, output, decay, mixes_backward, att_norm)
        return BackwardLayer(
            forward=(*time_mix, *channel_mix.forward),
            recompute=(*channel_mix.recompute, *time_mix[:-1]),
            backward=(*channel_mix.backward, *time_mix_backward),
        )

    def _time_mix_backward(
        self, builder: LayerBuilder, output: BoundMatMul, decay: Decay, mixes_backward: Iterator[Stage], norm: NormShift
    ) -> Iterator[Stage]:
        context, recurrence = self._context, self._recurrence
        heads = HeadBuffers(self.projected, decay, self.d_projected, self.d_decay)
        yield matmul_backward(context, output, context.dx, recurrence.traced)
        yield from recurrence.to_state(builder, heads)
        if builder.layer > 0 or context.needs_first_inputs:
            yield from recurrence.to_inputs(builder, heads)
            yield from mixes_backward
            x = builder.context.buffers.x
            yield from norm_shift_backward(context, builder, "att norm", norm, x, self.d_mixes)


def on_tokens(
    builder: LayerBuilder, kernel: str, constants: Mapping[str, Constant], buffers: Mapping[str, Buffer]
) -> KernelStage:
    """Return the stage of a kernel that runs a workgroup for each token."""
    common = {"THREADS": builder.context.tuning.norm_threads, "WIDTH": builder.width}
    return builder.context.kernel_stage(
        builder.label(_describe(kernel)), kernel, {**common, **constants}, buffers, lambda step: (step.num_tokens, 1)
    )


def _describe(kernel: str) -> str:
    words = kernel.replace("_", " ")
    return f"{words.removesuffix(' backward')}, backward" if words.endswith(" backward") else words
