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

from collections.abc import Iterator, Mapping
from typing import Final

from rnn_engine.backward.context import BackwardContext, BackwardLayer
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer
from rnn_engine.versions.shared.backward_plan import keep_input, matmul_backward, norm_shift_backward
from rnn_engine.versions.shared.plan import check_head_size, head_kernel
from rnn_engine.versions.v7.layout import ShapeV7
from rnn_engine.versions.v7.plan import ATT_NORM, FFN_NORM, ChannelMixStages, Layer, Scratch, TimeMixStages
from shaders import Constant

_TRACED_PLANES: Final = 8  # of traced_planes.wgsl
_KEPT_EVERY: Final = 16  # as in kept_gradients.wgsl


def load_backward(context: BackwardContext) -> Iterator[BackwardLayer]:
    """Load the layers of an RWKV-7 model onto the device one by one, and yield the stages of each.

    Raises DeviceError if the head size is too large.
    """
    shape = context.forward.model.shape
    assert isinstance(shape, ShapeV7)
    check_head_size(shape)
    scratch = Scratch(context.forward, shape)
    gradients = _Gradients(context, shape, scratch)
    for layer in range(shape.num_layers):
        yield _Layer(context, scratch, gradients, shape, layer).backward_layer()


class _Gradients:
    """The device buffers of the gradients within a layer of RWKV-7, which mirror those of `Scratch`."""

    def __init__(self, context: BackwardContext, shape: ShapeV7, scratch: Scratch) -> None:
        tokens, runs = context.forward.limits.max_tokens, context.forward.limits.num_slots
        create = context.forward.memory.create_buffer
        self.mixes = create("gradients of mixes", scratch.mixes.size)
        self.projected = create("gradients of projected", scratch.projected.size)
        self.gates = create("gradients of gates", scratch.gates.size)
        self.v_first = create("gradient of v_first", scratch.v_first.size)
        self.ffn_hidden = create("gradients of ffn hidden", scratch.ffn_hidden.size)
        self.traced = create("traced", 4 * tokens * (_TRACED_PLANES * shape.width + shape.num_heads))
        kept_floats = shape.num_heads * round_up(shape.head_size, 8) ** 2
        self.kept = create("kept state gradients", 4 * (tokens // _KEPT_EVERY + runs) * kept_floats)
        self.x = create("input of the layer", 4 * tokens * shape.width)  # [T, D]


class _Layer(Layer):
    """A helper that builds the stages of one RWKV-7 layer and of its backward pass."""

    def __init__(
        self, context: BackwardContext, scratch: Scratch, gradients: _Gradients, shape: ShapeV7, layer: int
    ) -> None:
        super().__init__(context.forward, scratch, shape, layer)
        self._backward = context
        self._gradients = gradients

    def backward_layer(self) -> BackwardLayer:
        time_mix, channel_mix = self.time_mix_stages(self._gradients.traced), self.channel_mix_stages()
        return BackwardLayer(
            forward=(*time_mix, *channel_mix),
            recompute=(keep_input(self._backward, self._gradients.x), *time_mix, channel_mix.norm, channel_mix.key),
            backward=(*self._channel_mix_backward(channel_mix), *self._time_mix_backward(time_mix)),
        )

    def _channel_mix_backward(self, forward: ChannelMixStages) -> Iterator[Stage]:
        context, d, hidden = self._backward, self._gradients, self._scratch.ffn_hidden
        yield matmul_backward(context, forward.value, context.dx, d.ffn_hidden, hidden)
        yield matmul_backward(context, forward.key, d.ffn_hidden, d.mixes)
        yield norm_shift_backward(context, self, "ffn norm", FFN_NORM, self.context.buffers.x, d.mixes)

    def _time_mix_backward(self, forward: TimeMixStages) -> Iterator[Stage]:
        """Yield the stages of the time mix. The first layer's input needs no gradient, except for its token shift."""
        context, d, projected = self._backward, self._gradients, self._scratch.projected
        yield matmul_backward(context, forward.output, context.dx, d.traced)  # plane D_Y
        yield from self._state_backward()
        if self.layer > 0 or context.trains_shifts:
            yield from self._projected_backward()
            yield matmul_backward(context, forward.gates, d.gates, d.projected, projected)
            yield matmul_backward(context, forward.projections, d.projected, d.mixes)
            yield norm_shift_backward(context, self, "att norm", ATT_NORM, d.x, d.mixes)

    def _state_backward(self) -> Iterator[KernelStage]:
        """Yield the stages up to the gradient of the initial state."""
        d, starts = self._gradients, self.vectors.starts
        constants = {
            "GROUP_NORM_WEIGHT": starts["att.ln_x.weight"],
            "GROUP_NORM_BIAS": starts["att.ln_x.bias"],
            "EPSILON": self._shape.group_norm_epsilon,
        }
        yield self._elementwise("outputs", constants, {"v_first": self._scratch.v_first})
        yield self._walk("rows", {}, {})
        buffers = {"d_gates": d.gates, "kept": d.kept, "state_gradients": self._backward.state_gradients}
        yield self._walk("columns", self._state_places(), buffers)

    def _projected_backward(self) -> Iterator[KernelStage]:
        """Yield the stages from the recurrence to the gradients of what the matmuls have made."""
        d = self._gradients
        buffers = {"d_gates": d.gates, "kept": d.kept, "state": self.context.states[self.layer]}
        yield self._walk("decay", self._state_places(), buffers)
        is_last = self.layer + 1 == self._shape.num_layers
        yield self._elementwise("inputs", {"IS_LAST_LAYER": is_last}, {"d_v_first": d.v_first})

    def _state_places(self) -> dict[str, Constant]:
        layout = self.context.state_layout
        return {"STATE_STRIDE": layout.stride, "WKV_OFFSET": layout.offsets["wkv"]}

    def _elementwise(self, part: str, constants: Mapping[str, Constant], buffers: Mapping[str, Buffer]) -> KernelStage:
        """Return the stage of the kernel wkv7_{part}_backward, which runs a workgroup per head and token."""
        scratch, d, num_heads = self._scratch, self._gradients, self._shape.num_heads
        common = {
            "THREADS": min(self.context.tuning.norm_threads, 1 << (self._shape.head_size - 1).bit_length()),
            "WIDTH": self.width,
            "HEAD_SIZE": self._shape.head_size,
            "IS_FIRST_LAYER": self.layer == 0,
            **self.key_constants(),
        }
        common_buffers = {
            "vectors": self.vectors.buffer,
            "projected": scratch.projected,
            "gates": scratch.gates,
            "traced": d.traced,
            "d_projected": d.projected,
            "d_gates": d.gates,
        }
        return self.context.kernel_stage(
            self.label(f"{part}, backward"),
            f"wkv7_{part}_backward",
            {**common, **constants},
            {**common_buffers, **buffers},
            lambda step: (num_heads, step.num_tokens),
        )

    def _walk(self, part: str, constants: Mapping[str, Constant], buffers: Mapping[str, Buffer]) -> KernelStage:
        """Return the stage of the kernel wkv7_{part}_backward, which runs a workgroup per head and token run."""
        scratch, d, num_heads = self._scratch, self._gradients, self._shape.num_heads
        common = {
            "projected": scratch.projected,
            "gates": scratch.gates,
            "traced": d.traced,
            "d_projected": d.projected,
        }
        name, includes = head_kernel(self.context, self._shape, f"wkv7_{part}_backward")
        return self.context.kernel_stage(
            self.label(f"{part}, backward"),
            name,
            {"WIDTH": self.width, "HEAD_SIZE": self._shape.head_size, **constants},
            {**common, **buffers},
            lambda step: (num_heads, step.num_runs),
            includes,
        )
