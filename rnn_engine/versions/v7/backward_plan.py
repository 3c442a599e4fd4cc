"""The backward pass of RWKV-7 on a device: the buffers and the stages of its layers.

On the way back, a layer has twelve dispatches:

1. Value, transposed, with the slope of the squared relu.
2. Key, transposed.
3. Norm and token shift, added to the gradient of the residual.
4. The output, transposed.
5. Gate, bonus and group norm of every head.
6. The recurrence of every head from its end, by rows of the state: gradients of v and of what the state has of kk.
7. The same by columns: gradients of the keys, and of the initial state.
8. The recurrence once more, by columns: gradients of r, of the removed keys and of the decay.
9. Keys, in-context rate, decay and value residual.
10. The adapters' second halves, transposed, with the slopes of their inner activations.
11. r, k, v and the adapters' first halves, transposed.
12. Norm and token shift, added to the gradient of the residual.

The maths is that of backward_reference.py beside this module. Gradients are in buffers with the layout of what they
belong to.
"""

from __future__ import annotations

from collections.abc import Iterator

from rnn_engine.backward.context import BackwardContext, BackwardLayer
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.versions.shared.backward_plan import (
    HeadBuffers,
    RecurrenceBackward,
    keep_x,
    matmul_backward,
    norm_shift_backward,
)
from rnn_engine.versions.shared.plan import Decay, check_head_size, group_norm_constants
from rnn_engine.versions.v7.layout import ShapeV7
from rnn_engine.versions.v7.plan import ATT_NORM, FFN_NORM, ChannelMixStages, Layer, Scratch, TimeMixStages


def load_backward(context: BackwardContext) -> Iterator[BackwardLayer]:
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = context.forward.model.shape
    assert isinstance(shape, ShapeV7)
    check_head_size(shape)
    scratch = Scratch(context.forward, shape)
    gradients = _Gradients(context, shape, scratch)
    for layer in range(shape.num_layers):
        own = scratch.with_own_hidden(context.forward) if layer else scratch
        yield _Layer(context, own, gradients, shape, layer).backward_layer()


class _Gradients:
    """The device buffers of the gradients within a layer of RWKV-7, which mirror those of `Scratch`."""

    def __init__(self, context: BackwardContext, shape: ShapeV7, scratch: Scratch) -> None:
        create = context.forward.memory.create_buffer
        self.mixes = create("gradients of mixes", scratch.mixes.size)
        self.projected = create("gradients of projected", scratch.projected.size)
        self.gates = create("gradients of gates", scratch.gates.size)
        self.v_first = create("gradient of v_first", scratch.v_first.size)
        self.ffn_hidden = create("gradients of ffn hidden", scratch.ffn_hidden.size)
        decay = Decay(scratch.gates, 0, shape.width)
        self.heads = HeadBuffers(scratch.projected, decay, self.projected, self.gates)
        self.recurrence = RecurrenceBackward(context, shape, removes_keys=True)


class _Layer(Layer):
    """A helper that builds the stages of one RWKV-7 layer and of its backward pass."""

    def __init__(
        self, context: BackwardContext, scratch: Scratch, gradients: _Gradients, shape: ShapeV7, layer: int
    ) -> None:
        super().__init__(context.forward, scratch, shape, layer)
        self._backward = context
        self._gradients = gradients
        self._middle = context.forward.memory.create_buffer("x after the time mix", context.dx.size)  # [T, D]

    def backward_layer(self) -> BackwardLayer:
        time_mix, channel_mix = self.time_mix_stages(self._gradients.recurrence.traced), self.channel_mix_stages()
        return BackwardLayer(
            forward=(*time_mix, keep_x(self._backward, self._middle), *channel_mix),
            recompute=time_mix[:-1],
            backward=(*self._channel_mix_backward(channel_mix), *self._time_mix_backward(time_mix)),
        )

    def _channel_mix_backward(self, forward: ChannelMixStages) -> Iterator[Stage]:
        context, d, hidden = self._backward, self._gradients, self._scratch.ffn_hidden
        yield matmul_backward(context, forward.value, context.dx, d.ffn_hidden, hidden)
        yield matmul_backward(context, forward.key.matmul, d.ffn_hidden, d.mixes)
        yield norm_shift_backward(context, self, "ffn norm", FFN_NORM, self._middle, d.mixes)

    def _time_mix_backward(self, forward: TimeMixStages) -> Iterator[Stage]:
        """Yield the stages of the time mix. The first layer's input needs no gradient, except for its token shift."""
        context, d, recurrence = self._backward, self._gradients, self._gradients.recurrence
        yield matmul_backward(context, forward.output, context.dx, recurrence.traced)
        yield self._outputs_backward()
        yield from recurrence.to_state(self, d.heads)
        if self.layer > 0 or context.trains_shifts:
            yield recurrence.to_decay(self, d.heads)
            yield self._inputs_backward()
            yield matmul_backward(context, forward.recurrence.gates, d.gates, d.projected, self._scratch.projected)
            yield matmul_backward(context, forward.projections.matmul, d.projected, d.mixes)
            yield norm_shift_backward(context, self, "att norm", ATT_NORM, self.context.buffers.x, d.mixes)

    def _outputs_backward(self) -> KernelStage:
        scratch, d = self._scratch, self._gradients
        constants = {
            "IS_FIRST_LAYER": self.layer == 0,
            **self.key_constants(),
            **group_norm_constants(self, self._shape),
        }
        buffers = {"gates": scratch.gates, "v_first": scratch.v_first, "d_gates": d.gates}
        return d.recurrence.on_tokens(self, "wkv7_outputs_backward", constants, d.heads, buffers)

    def _inputs_backward(self) -> KernelStage:
        d = self._gradients
        constants = {
            "IS_FIRST_LAYER": self.layer == 0,
            "IS_LAST_LAYER": self.layer + 1 == self._shape.num_layers,
            **self.key_constants(),
        }
        buffers = {"gates": self._scratch.gates, "d_gates": d.gates, "d_v_first": d.v_first}
        return d.recurrence.on_tokens(self, "wkv7_inputs_backward", constants, d.heads, buffers)
