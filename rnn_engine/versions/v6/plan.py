"""The forward and backward passes of RWKV-6 on a device: the buffers and the stages of its layers.

A layer has ten dispatches. On hardware, a step of one token has seven: two matmuls compute the norms before them, and
the recurrence computes the decay's second half.

1. Norm and token shift into six mixes.
2. The first halves of the mixes' adapters.
3. The second halves of the mixes' adapters, added to five mixes.
4. r, k, v, the gate and the first half of the decay's adapter.
5. The second half of the decay's adapter.
6. The recurrence of every head.
7. The output, added to the residual.
8. Norm and token shift.
9. Key, squared relu, and receptance.
10. Value, scaled and added.

The maths is that of reference.py beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rnn_engine.backward.context import BackwardContext, BackwardLayer
from rnn_engine.backward.matmul import matmul_backward
from rnn_engine.forward.context import BuildContext, NormShift, PackedVectors
from rnn_engine.forward.matmul import BoundMatMul, NormedMatMul
from rnn_engine.forward.segments import Activation, Matrix, SegmentWeights
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer
from rnn_engine.versions.shared.backward_plan import BonusLayersBackward, on_tokens, vectors_backward
from rnn_engine.versions.shared.plan import (
    Decay,
    GatedChannelMix,
    GatedRecurrence,
    LayerBuilder,
    adapter_constants,
    bonus_constants,
    bonus_recurrence,
    can_compute_gates,
    shape_for_gpu,
    stage_with_adapters,
)
from rnn_engine.versions.v6.layout import NUM_MIXES, ShapeV6

_X, _W, _K, _V, _R, _G, _DIFFERENCE = range(7)  # planes of `mixes`
_ATT_MIXES: Final = tuple(f"att.time_maa_{kind}" for kind in "xwkvrg")
ATT_NORM: Final = NormShift("ln1", _ATT_MIXES, "att_shift", keeps_difference=True)
FFN_NORM: Final = NormShift("ln2", ("ffn.time_maa_k", "ffn.time_maa_r"), "ffn_shift")
BONUS: Final = "att.time_faaaa"
_VECTORS: Final = (
    *_ATT_MIXES,
    *("ffn.time_maa_k", "ffn.time_maa_r", "att.time_decay"),  # these and those before them can be trained
    *("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"),
    *("att.time_faaaa", "att.ln_x.weight", "att.ln_x.bias"),
    *("att.receptance.bias", "att.key.bias", "att.value.bias"),  # of QRWKV6
)  # all of size D, except for the last two


def load_layers(context: BuildContext) -> Iterator[tuple[Stage, ...]]:
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = shape_for_gpu(context.model, ShapeV6)
    scratch = Scratch(context, shape)
    channel_mix = GatedChannelMix(context, scratch.mixes)
    for layer in range(shape.num_layers):
        builder = make_builder(context, layer)
        yield (*time_mix_stages(builder, shape, scratch), *channel_mix.stages(builder, FFN_NORM))


def make_builder(context: BuildContext, layer: int) -> LayerBuilder:
    vectors = PackedVectors.load(context, f"layer {layer} vectors", f"blocks.{layer}.", _VECTORS)
    return LayerBuilder(context, layer, vectors)


class Scratch:
    """The device buffers for activations within a layer of RWKV-6. All layers share them."""

    def __init__(self, context: BuildContext, shape: ShapeV6) -> None:
        tokens, width = context.limits.max_tokens, shape.width
        self.mix_stride = round_up(shape.mix_rank, 8)
        self.decay_stride = round_up(shape.decay_rank, 8)
        create = context.memory.create_buffer
        self.mixes = create("mixes", 4 * 7 * tokens * width)  # [7, T, D], the last one the difference
        self.mixes_hidden = create("mixes hidden", 4 * tokens * NUM_MIXES * self.mix_stride)  # [T, 5, R]
        self.projected = create("projected", 4 * tokens * (4 * width + self.decay_stride))  # r, k, v, g, then [T, R]
        self.decay = create("decay", 4 * tokens * width)  # [T, D]
        self.mixed = create("mixed", 4 * tokens * width)  # [T, D]


class TimeMixStages(NamedTuple):
    """The stages of a layer's time mix, in their order."""

    mixes_down: NormedMatMul
    mixes_up: BoundMatMul
    projections: BoundMatMul
    recurrence: GatedRecurrence
    output: BoundMatMul


def time_mix_stages(
    builder: LayerBuilder,
    shape: ShapeV6,
    scratch: Scratch,
    *,
    traced: Buffer | None = None,
    added: Buffer | None = None,
) -> TimeMixStages:
    """Return the time mix's stages, `traced` as in `head_stage`; adapters write to `added` [5, T, D] if given."""
    mixes, hidden, projected = scratch.mixes, scratch.mixes_hidden, scratch.projected
    if added is None:
        mixes_up = builder.matmul("mixes, second half", _mixes_up(builder, scratch), hidden, mixes)
    else:
        plain = [
            replace(matrix, outputs_start=number * builder.plane, activation=Activation.NONE)
            for number, matrix in enumerate(_mixes_up(builder, scratch))
        ]
        mixes_up = builder.matmul("mixes, second half", plain, hidden, added)
    down = [_mixes_down(builder, scratch)]
    return TimeMixStages(
        builder.normed_matmul("att norm", ATT_NORM, "mixes, first half", down, mixes, hidden, keeps_mixes=True),
        mixes_up,
        builder.matmul("projections", _projections(builder, scratch), mixes, projected),
        _recurrence(builder, shape, scratch, traced),
        builder.output(scratch.mixed),
    )


def _mixes_down(builder: LayerBuilder, scratch: Scratch) -> Matrix:
    """Return the five adapters' down-projections as one matrix, whose outputs start at multiples of 8."""
    name, stride = "att.time_maa_w1", scratch.mix_stride
    stored = builder.weights(name, transposed=True)  # [5 * R, D]
    halves = stored.numbers.reshape(NUM_MIXES, -1, builder.width)
    padded: NDArray[Any] = np.pad(halves, ((0, 0), (0, stride - halves.shape[1]), (0, 0)))
    weights = SegmentWeights(padded.reshape(NUM_MIXES * stride, builder.width), stored.format)
    return Matrix(weights, _X * builder.plane, builder.width, 0, NUM_MIXES * stride, Activation.TANH)


def _mixes_up(builder: LayerBuilder, scratch: Scratch) -> list[Matrix]:
    """Return the five adapters' up-projections, added to mixes times the difference to the token before."""
    stored = builder.weights("att.time_maa_w2")  # [5, R, D]
    return [
        Matrix(
            SegmentWeights(half.T, stored.format),
            inputs_start=number * scratch.mix_stride,
            inputs_stride=NUM_MIXES * scratch.mix_stride,
            outputs_start=plane * builder.plane,
            outputs_stride=builder.width,
            activation=Activation.SHIFTED_MIX,
            operand_start=_DIFFERENCE * builder.plane,
            operand_stride=builder.width,
            inputs_from=Activation.TANH,
        )
        for number, (plane, half) in enumerate(zip((_W, _K, _V, _R, _G), stored.numbers, strict=True))
    ]


def _projections(builder: LayerBuilder, scratch: Scratch) -> list[Matrix]:
    """Return the matrices of r, k, v and gate, to planes [T, D], and of the decay's first half, after these."""
    down = Matrix(
        builder.weights("att.time_decay_w1", transposed=True),  # [R, D]
        inputs_start=_W * builder.plane,
        inputs_stride=builder.width,
        outputs_start=4 * builder.plane,
        outputs_stride=scratch.decay_stride,
        activation=Activation.TANH,
    )
    return [
        builder.between_planes("att.receptance.weight", _R, 0),
        builder.between_planes("att.key.weight", _K, 1),
        builder.between_planes("att.value.weight", _V, 2),
        builder.between_planes("att.gate.weight", _G, 3),
        down,
    ]


def _recurrence(builder: LayerBuilder, shape: ShapeV6, scratch: Scratch, traced: Buffer | None) -> GatedRecurrence:
    gates = builder.matmul("decay", [_decay_up(builder, scratch)], scratch.projected, scratch.decay)
    stored = bonus_recurrence(
        builder,
        shape,
        bonus=BONUS,
        projected=scratch.projected,
        decay=Decay(scratch.decay, 0, shape.width),
        mixed=scratch.mixed,
        has_gate=True,
        traced=traced,
    )
    if traced is not None or not can_compute_gates(builder.context, gates):
        return GatedRecurrence(gates, stored, None)
    ((part, _),) = gates.parts
    constants = bonus_constants(builder, shape, BONUS, has_gate=True)
    constants |= adapter_constants("w", part.places[0], has_bias=True)
    buffers = {"projected": scratch.projected, "mixed": scratch.mixed}
    includes = {"decays": "decays_by_rows"}
    alone = stage_with_adapters(builder, shape, "wkv5", gates, constants, buffers, includes)
    return GatedRecurrence(gates, stored, alone)


def _decay_up(builder: LayerBuilder, scratch: Scratch) -> Matrix:
    return Matrix(
        builder.weights("att.time_decay_w2", transposed=True),  # [D, R]
        inputs_start=4 * builder.plane,
        inputs_stride=scratch.decay_stride,
        outputs_start=0,
        outputs_stride=builder.width,
        activation=Activation.DOUBLE_EXP_DECAY,
        operand_start=builder.vectors.starts["att.time_decay"],
        inputs_from=Activation.TANH,
    )


# The backward pass of RWKV-6 on a device: the buffers and the stages of its layers.
#
# On the way back, a layer has sixteen dispatches:
#
# 1. The gate of the channel mix.
# 2. Value, transposed, with the slope of the squared relu.
# 3. Key and receptance, transposed.
# 4. Norm and token shift, added to the gradient of the residual.
# 5. The output, transposed.
# 6. Gate, group norm and bonus of every head.
# 7. The recurrence of every head from its end, by rows of the state: gradient of v.
# 8. The same by columns: gradients of k and of the initial state.
# 9. The recurrence once more, by columns: gradients of r and of the decay.
# 10. The bonus's part of the gradients of r and k, and the decay's exponents.
# 11. The second half of the decay's adapter, transposed.
# 12. r, k, v, the gate and the first half of the decay's adapter, transposed.
# 13. What the adapters of the mixes add to them.
# 14. The second halves of these adapters, transposed.
# 15. Their first halves, transposed.
# 16. Norm and token shift, added to the gradient of the residual.


def load_backward(context: BackwardContext) -> Iterator[BackwardLayer]:
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = shape_for_gpu(context.forward.model, ShapeV6)
    layers = _Layers(context, shape)
    for layer in range(shape.num_layers):
        yield layers.load(layer)


class _Layers:
    """Builds the layers of an RWKV-6 model, which share its buffers.

    The adapters of the mixes are not added to these by their matmul, since the gradient of the difference between a
    token and the one before it needs them by themselves.
    """

    def __init__(self, context: BackwardContext, shape: ShapeV6) -> None:
        create = context.forward.memory.create_buffer
        scratch = self._scratch = Scratch(context.forward, shape)
        self._context = context
        self._shape = shape
        self._added = create("added to mixes", NUM_MIXES * scratch.decay.size)  # [5, T, D], then their gradients
        self._d_mixes_hidden = create("gradients of mixes hidden", scratch.mixes_hidden.size)
        self._shared = BonusLayersBackward(
            context, shape, mixes=scratch.mixes, projected=scratch.projected, bonus=BONUS, has_gate=True
        )

    def load(self, layer: int) -> BackwardLayer:
        builder = make_builder(self._context.forward, layer)
        stages = time_mix_stages(builder, self._shape, self._scratch, traced=self._shared.traced, added=self._added)
        add = self._mixes_stage(builder, "add_shifted_mixes", {})
        decay = Decay(self._scratch.decay, 0, self._shape.width)
        to_mixes = self._mixes_backward(builder, stages)
        norms = ATT_NORM, FFN_NORM
        return self._shared.layer(builder, (*stages[:2], add, *stages[2:]), stages.output, decay, to_mixes, norms)

    def _mixes_backward(self, builder: LayerBuilder, forward: TimeMixStages) -> Iterator[Stage]:
        """Yield the stages from the gradients of r, k, v, the gate and the decay to those of the mixes."""
        context, scratch, shared = self._context, self._scratch, self._shared
        yield from vectors_backward(context, builder, ("att.time_decay",), shared.d_decay)
        yield matmul_backward(context, forward.recurrence.gates, shared.d_decay, shared.d_projected, scratch.projected)
        yield matmul_backward(context, forward.projections, shared.d_projected, shared.d_mixes)
        yield self._mixes_stage(builder, "add_shifted_mixes_backward", {"d_mixes": shared.d_mixes})
        yield matmul_backward(context, forward.mixes_up, self._added, self._d_mixes_hidden, scratch.mixes_hidden)
        yield matmul_backward(context, forward.mixes_down.matmul, self._d_mixes_hidden, shared.d_mixes)

    def _mixes_stage(self, builder: LayerBuilder, kernel: str, buffers: dict[str, Buffer]) -> KernelStage:
        common = {"mixes": self._scratch.mixes, "added": self._added}
        return on_tokens(builder, kernel, {"ADAPTERS": NUM_MIXES}, {**common, **buffers})
