"""The forward passes of QRWKV6 and ARWKV on a device: the stages of their layers.

The time mix is that of RWKV-6 or RWKV-7. After it come:

1. Norm and the channel mix's gate, times the other half of its inputs.
2. The matrix back to the width, added to the residual.

With the norm in a dispatch of its own, a layer of QRWKV6 has ten dispatches, and one of ARWKV eight. On hardware, a
step of one token has seven and five. If gate and other half are in different formats, each has a dispatch. The maths
is that of reference.py beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rnn_engine.forward.context import BuildContext, NormShift
from rnn_engine.forward.segments import Activation, SegmentWeights
from rnn_engine.forward.stages import Stage
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer
from rnn_engine.quantised.rows import interleave_rows
from rnn_engine.versions.qwen2.layout import ShapeV6Qwen2, ShapeV7Qwen2
from rnn_engine.versions.shared.plan import LayerBuilder, shape_for_gpu
from rnn_engine.versions.v6 import plan as v6
from rnn_engine.versions.v7 import plan as v7

_FFN_NORM: Final = NormShift("ln2")


def load_layers_v6(context: BuildContext) -> Iterator[tuple[Stage, ...]]:
    """Load the layers of a QRWKV6 onto the device one by one, and yield the stages of each.

    Raises DeviceError if the head size is too large.
    """
    shape = shape_for_gpu(context.model, ShapeV6Qwen2)
    scratch = v6.Scratch(context, shape)
    num_floats = context.limits.max_tokens * round_up(shape.ffn_width, 8)
    hidden = context.memory.create_buffer("ffn hidden", 4 * num_floats)  # [T, F]
    for layer in range(shape.num_layers):
        builder = v6.make_builder(context, layer)
        yield (*v6.time_mix_stages(builder, shape, scratch), *_channel_mix(builder, scratch.mixes, hidden))


def load_layers_v7(context: BuildContext) -> Iterator[tuple[Stage, ...]]:
    """Load the layers of an ARWKV onto the device one by one, and yield the stages of each.

    Raises DeviceError if the head size is too large.
    """
    shape = shape_for_gpu(context.model, ShapeV7Qwen2)
    scratch = v7.Scratch(context, shape)
    for layer in range(shape.num_layers):
        builder = v7.Layer(context, scratch, shape, layer)
        yield (*builder.time_mix_stages(), *_channel_mix(builder, scratch.mixes, scratch.ffn_hidden))


def _channel_mix(builder: LayerBuilder, mixes: Buffer, hidden: Buffer) -> tuple[Stage, ...]:
    """Return the stages of the channel mix of a Qwen2 (SwiGLU). They overwrite the first plane of `mixes`."""
    gate = builder.alone("ffn.gate.weight", Activation.SILU)
    up = builder.alone("ffn.up.weight", Activation.PRODUCT)
    down = builder.alone("ffn.down.weight", Activation.RESIDUAL)
    last = builder.matmul("down", [down], hidden, builder.context.buffers.x)
    if gate.weights.format.name != up.weights.format.name:
        normed = builder.normed_matmul("ffn norm", _FFN_NORM, "gate", [gate], mixes, hidden, keeps_mixes=True)
        return normed, builder.matmul("up", [up], mixes, hidden), last
    rows = interleave_rows(gate.weights.values, up.weights.values)
    both = replace(gate, weights=SegmentWeights(rows, gate.weights.format), activation=Activation.SWIGLU)
    return builder.normed_matmul("ffn norm", _FFN_NORM, "gate and up", [both], mixes, hidden), last
