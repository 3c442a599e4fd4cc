"""The forward pass of RWKV-5 on a device: the buffers and the stages of its layers.

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
from typing import Final

from rnn_engine.forward.context import BuildContext, NormShift, PackedVectors
from rnn_engine.forward.segments import Activation
from rnn_engine.forward.stages import Stage
from rnn_engine.versions.shared.plan import (
    Decay,
    GatedChannelMix,
    LayerBuilder,
    ScratchBuffers,
    block_lookup,
    bonus_recurrence,
    check_head_size,
    static_mixes,
)
from rnn_engine.versions.v5.layout import ShapeV5, make_bonus, make_decay

_PROJECTIONS: Final = ("receptance", "key", "value", "gate")  # each reads the mix of its initial
_FFN_MIXES: Final = ("ffn.time_mix_k", "ffn.time_mix_r")
_PLAIN: Final = ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "att.ln_x.weight", "att.ln_x.bias")


def load_layers(context: BuildContext) -> Iterator[tuple[Stage, ...]]:
    """Load the layers of an RWKV-5 model onto the device one by one, and yield the stages of each.

    Raises DeviceError if the head size is too large.
    """
    shape = context.model.shape
    assert isinstance(shape, ShapeV5)
    check_head_size(shape)
    projections = _PROJECTIONS if shape.has_gate else _PROJECTIONS[:3]
    scratch = ScratchBuffers(context, num_mixes=len(projections), num_projections=len(projections))
    channel_mix = GatedChannelMix(context, scratch.mixes)
    for layer in range(shape.num_layers):
        builder = LayerBuilder(context, layer, _pack_vectors(context, shape, layer, projections))
        yield (
            *_time_mix_stages(builder, shape, projections, scratch),
            *channel_mix.stages(builder, *_FFN_MIXES),
        )


def _mix_names(projections: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"att.time_mix_{name[0]}" for name in projections)


def _pack_vectors(context: BuildContext, shape: ShapeV5, layer: int, projections: tuple[str, ...]) -> PackedVectors:
    lookup = block_lookup(context.model, layer)
    vectors = {
        **static_mixes(lookup, (*_mix_names(projections), *_FFN_MIXES)),
        **{name: lookup(name) for name in _PLAIN},
        "decay": make_decay(lookup, shape),
        "bonus": make_bonus(lookup, shape),
    }
    return PackedVectors.pack(context, f"layer {layer} vectors", vectors)


def _time_mix_stages(
    builder: LayerBuilder, shape: ShapeV5, projections: tuple[str, ...], scratch: ScratchBuffers
) -> tuple[Stage, ...]:
    vectors = builder.vectors
    return (
        builder.norm_shift("att norm", NormShift("ln1", _mix_names(projections), "att_shift"), scratch.mixes),
        builder.matmul(
            "projections",
            [
                builder.between_planes(
                    f"att.{name}.weight", plane, plane, Activation.SILU if name == "gate" else Activation.NONE
                )
                for plane, name in enumerate(projections)
            ],
            scratch.mixes,
            scratch.projected,
        ),
        bonus_recurrence(
            builder,
            shape,
            bonus="bonus",
            projected=scratch.projected,
            decay=Decay(vectors.buffer, vectors.starts["decay"], 0),
            mixed=scratch.mixed,
            has_gate=shape.has_gate,
        ),
        builder.output(scratch.mixed),
    )
