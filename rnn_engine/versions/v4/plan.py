"""The forward pass of RWKV-4 on a device: the buffers and the stages of its layers.

A layer has seven dispatches:

1. Norm and token shift into three mixes.
2. r, k and v.
3. The recurrence of every channel.
4. The output, added to the residual.
5. Norm and token shift.
6. Key, squared relu, and receptance.
7. Value, scaled and added.

The maths is that of reference.py beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rnn_engine.forward.context import BuildContext, NormShift, PackedVectors
from rnn_engine.forward.segments import Activation
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.versions.shared.plan import GatedChannelMix, LayerBuilder, ScratchBuffers, block_lookup, static_mixes

_ATT_MIXES: Final = ("att.time_mix_r", "att.time_mix_k", "att.time_mix_v")
_FFN_MIXES: Final = ("ffn.time_mix_k", "ffn.time_mix_r")
_ATT_NORM: Final = NormShift("ln1", _ATT_MIXES, "att_shift")
_FFN_NORM: Final = NormShift("ln2", _FFN_MIXES, "ffn_shift")
_PLAIN: Final = ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "att.time_first")
_THREADS: Final = 64


def load_layers(context: BuildContext) -> Iterator[tuple[Stage, ...]]:
    """Load the layers of an RWKV-4 model onto the device one by one, and yield the stages of each."""
    scratch = ScratchBuffers(context, num_mixes=3, num_projections=3)
    channel_mix = GatedChannelMix(context, scratch.mixes)
    for layer in range(context.model.shape.num_layers):
        builder = LayerBuilder(context, layer, _pack_vectors(context, layer))
        projections = [
            builder.between_planes("att.receptance.weight", 0, 0, Activation.SIGMOID),
            builder.between_planes("att.key.weight", 1, 1),
            builder.between_planes("att.value.weight", 2, 2),
        ]
        yield (
            builder.normed_matmul("att norm", _ATT_NORM, "projections", projections, scratch.mixes, scratch.projected),
            _recurrence(builder, scratch),
            builder.output(scratch.mixed),
            *channel_mix.stages(builder, _FFN_NORM),
        )


def _pack_vectors(context: BuildContext, layer: int) -> PackedVectors:
    lookup = block_lookup(context.model, layer)
    vectors = {
        **static_mixes(lookup, (*_ATT_MIXES, *_FFN_MIXES)),
        **{name: lookup(name) for name in _PLAIN},
        "decay": -np.exp(lookup("att.time_decay")),
    }
    return PackedVectors.pack(context, f"layer {layer} vectors", vectors)


def _recurrence(builder: LayerBuilder, scratch: ScratchBuffers) -> KernelStage:
    context, starts, width = builder.context, builder.vectors.starts, builder.width
    constants = {
        "THREADS": _THREADS,
        "WIDTH": width,
        "STATE_STRIDE": context.state_layout.stride,
        "AA_OFFSET": context.state_layout.offsets["aa"],
        "BB_OFFSET": context.state_layout.offsets["bb"],
        "PP_OFFSET": context.state_layout.offsets["pp"],
        "DECAY": starts["decay"],
        "U": starts["att.time_first"],
    }
    buffers = {
        "vectors": builder.vectors.buffer,
        "projected": scratch.projected,
        "state": context.states[builder.layer],
        "mixed": scratch.mixed,
    }
    return context.kernel_stage(
        builder.label("recurrence"),
        "wkv4",
        constants,
        buffers,
        lambda step: (-(-width // _THREADS), step.num_runs),
        state_bytes=4 * 3 * width,
    )
