"""The forward and backward passes of RWKV-5 on a device: the buffers and the stages of its layers.

A layer has seven dispatches:

1. Norm and token shift into three or four mixes.
2. r, k, v and the gate.
3. The recurrence of every head.
4. The output, added to the residual.
5. Norm and token shift.
6. Key, squared relu, and receptance.
7. Value, scaled and added.

The maths is that of reference.py beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rnn_engine.backward.context import BackwardContext, BackwardLayer
from rnn_engine.backward.matmul import matmul_backward
from rnn_engine.forward.context import BuildContext, NormShift, PackedVectors
from rnn_engine.forward.matmul import BoundMatMul, NormedMatMul
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.gpu import Buffer
from rnn_engine.versions.shared.backward_plan import BonusLayersBackward
from rnn_engine.versions.shared.plan import (
    Decay,
    GatedChannelMix,
    LayerBuilder,
    ScratchBuffers,
    block_lookup,
    bonus_recurrence,
    shape_for_gpu,
    static_mixes,
)
from rnn_engine.versions.v5.layout import ShapeV5, make_bonus, make_decay

_PROJECTIONS: Final = ("receptance", "key", "value", "gate")  # each reads the mix of its initial
_FFN_MIXES: Final = ("ffn.time_mix_k", "ffn.time_mix_r")
_PLAIN: Final = ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "att.ln_x.weight", "att.ln_x.bias")
FFN_NORM: Final = NormShift("ln2", _FFN_MIXES, "ffn_shift")


def load_layers(context: BuildContext) -> Iterator[tuple[Stage, ...]]:
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = shape_for_gpu(context.model, ShapeV5)
    scratch = make_scratch(context, shape)
    channel_mix = GatedChannelMix(context, scratch.mixes)
    for layer in range(shape.num_layers):
        builder = make_builder(context, shape, layer)
        yield (*time_mix_stages(builder, shape, scratch), *channel_mix.stages(builder, FFN_NORM))


def make_scratch(context: BuildContext, shape: ShapeV5) -> ScratchBuffers:
    """Allocate the device buffers for activations within a time mix. All layers share them."""
    num_projections = len(_projections(shape))
    return ScratchBuffers(context, num_mixes=num_projections, num_projections=num_projections)


def make_builder(context: BuildContext, shape: ShapeV5, layer: int) -> LayerBuilder:
    lookup = block_lookup(context.model, layer)
    vectors = {
        **static_mixes(lookup, (*att_norm(shape).mixes, *_FFN_MIXES)),
        **{name: lookup(name) for name in _PLAIN},
        "decay": make_decay(lookup, shape),
        "bonus": make_bonus(lookup, shape),
    }
    return LayerBuilder(context, layer, PackedVectors.pack(context, f"layer {layer} vectors", vectors))


def att_norm(shape: ShapeV5) -> NormShift:
    """Return the norm and token shift before the time mix."""
    return NormShift("ln1", tuple(f"att.time_mix_{name[0]}" for name in _projections(shape)), "att_shift")


def layer_decay(builder: LayerBuilder) -> Decay:
    """Return the place of the layer's decay, which all tokens share."""
    return Decay(builder.vectors.buffer, builder.vectors.starts["decay"], 0)


class TimeMixStages(NamedTuple):
    """The stages of a layer's time mix, in their order."""

    projections: NormedMatMul
    recurrence: KernelStage
    output: BoundMatMul


def time_mix_stages(
    builder: LayerBuilder, shape: ShapeV5, scratch: ScratchBuffers, traced: Buffer | None = None
) -> TimeMixStages:
    """Return the stages of the time mix. For `traced` see `rnn_engine.versions.shared.plan.head_stage`."""
    planes = enumerate(_projections(shape))
    projections = [builder.between_planes(f"att.{name}.weight", plane, plane) for plane, name in planes]
    return TimeMixStages(
        builder.normed_matmul(
            "att norm", att_norm(shape), "projections", projections, scratch.mixes, scratch.projected
        ),
        bonus_recurrence(
            builder,
            shape,
            bonus="bonus",
            projected=scratch.projected,
            decay=layer_decay(builder),
            mixed=scratch.mixed,
            has_gate=shape.has_gate,
            traced=traced,
        ),
        builder.output(scratch.mixed),
    )


def _projections(shape: ShapeV5) -> tuple[str, ...]:
    return _PROJECTIONS if shape.has_gate else _PROJECTIONS[:3]


# The backward pass. On the way back, a layer has the dispatches of RWKV-6 without those of adapters: twelve in all.


def load_backward(context: BackwardContext) -> Iterator[BackwardLayer]:
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = shape_for_gpu(context.forward.model, ShapeV5)
    scratch = make_scratch(context.forward, shape)
    layers = BonusLayersBackward(
        context, shape, mixes=scratch.mixes, projected=scratch.projected, bonus="bonus", has_gate=shape.has_gate
    )
    for layer in range(shape.num_layers):
        builder = make_builder(context.forward, shape, layer)
        stages = time_mix_stages(builder, shape, scratch, layers.traced)
        to_mixes = _mixes_backward(context, layers, stages)
        norms = att_norm(shape), FFN_NORM
        yield layers.layer(builder, stages, stages.output, layer_decay(builder), to_mixes, norms)


def _mixes_backward(context: BackwardContext, layers: BonusLayersBackward, forward: TimeMixStages) -> Iterator[Stage]:
    """Yield the stage from the gradients of r, k, v and the gate to those of the mixes. The decay has no input."""
    yield matmul_backward(context, forward.projections.matmul, layers.d_projected, layers.d_mixes)
