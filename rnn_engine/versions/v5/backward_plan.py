"""The backward pass of RWKV-5 on a device: the buffers and the stages of its layers.

On the way back, a layer has twelve dispatches:

1. The gate of the channel mix.
2. Value, transposed, with the slope of the squared relu.
3. Key and receptance, transposed.
4. Norm and token shift, added to the gradient of the residual.
5. The output, transposed.
6. Gate, group norm and bonus of every head.
7. The recurrence of every head from its end, by rows of the state: gradient of v.
8. The same by columns: gradients of k and of the initial state.
9. The recurrence once more, by columns: gradient of r.
10. The bonus's part of the gradients of r and k.
11. The projections, transposed.
12. Norm and token shift, added to the gradient of the residual.

The maths is that of backward_reference.py beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator

from rnn_engine.backward.context import BackwardContext, BackwardLayer
from rnn_engine.forward.stages import Stage
from rnn_engine.versions.shared.backward_plan import (
    BonusRecurrenceBackward,
    GatedChannelMixBackward,
    HeadBuffers,
    matmul_backward,
    norm_shift_backward,
)
from rnn_engine.versions.shared.plan import LayerBuilder, check_head_size
from rnn_engine.versions.v5.layout import ShapeV5
from rnn_engine.versions.v5.plan import (
    FFN_NORM,
    TimeMixStages,
    att_norm,
    layer_decay,
    make_builder,
    make_scratch,
    time_mix_stages,
)


def load_backward(context: BackwardContext) -> Iterator[BackwardLayer]:
    """Load the layers of an RWKV-5 model onto the device one by one, and yield the stages of each.

    Raises DeviceError if the head size is too large.
    """
    shape = context.forward.model.shape
    assert isinstance(shape, ShapeV5)
    check_head_size(shape)
    layers = _Layers(context, shape)
    for layer in range(shape.num_layers):
        yield layers.load(layer)


class _Layers:
    """Builds the layers of an RWKV-5 model, which share its buffers."""

    def __init__(self, context: BackwardContext, shape: ShapeV5) -> None:
        create, plane = context.forward.memory.create_buffer, 4 * context.forward.limits.max_tokens * shape.width
        self._context = context
        self._shape = shape
        self._scratch = make_scratch(context.forward, shape)
        self._d_mixes = create("gradients of mixes", self._scratch.mixes.size)
        self._d_projected = create("gradients of projected", self._scratch.projected.size)
        self._d_decay = create("gradient of the decay", plane)  # no one reads it
        self._channel_mix = GatedChannelMixBackward(context, self._scratch.mixes, self._d_mixes)
        self._recurrence = BonusRecurrenceBackward(context, shape, bonus="bonus", has_gate=shape.has_gate)

    def load(self, layer: int) -> BackwardLayer:
        builder = make_builder(self._context.forward, self._shape, layer)
        time_mix = time_mix_stages(builder, self._shape, self._scratch, self._recurrence.traced)
        channel_mix = self._channel_mix.layer(builder, FFN_NORM)
        return BackwardLayer(
            forward=(*time_mix, *channel_mix.forward),
            recompute=time_mix[:-1],
            backward=(*channel_mix.backward, *self._time_mix_backward(builder, time_mix)),
        )

    def _time_mix_backward(self, builder: LayerBuilder, forward: TimeMixStages) -> Iterator[Stage]:
        """Yield the stages of the time mix. The first layer's input needs no gradient, except for its token shift."""
        context, recurrence = self._context, self._recurrence
        heads = HeadBuffers(self._scratch.projected, layer_decay(builder), self._d_projected, self._d_decay)
        yield matmul_backward(context, forward.output, context.dx, recurrence.traced)
        yield from recurrence.to_state(builder, heads)
        if builder.layer > 0 or context.trains_shifts:
            yield from recurrence.to_inputs(builder, heads)
            yield matmul_backward(context, forward.projections, self._d_projected, self._d_mixes)
            yield norm_shift_backward(
                context, builder, "att norm", att_norm(self._shape), builder.context.buffers.x, self._d_mixes
            )
