"""The backward pass of RWKV-6 on a device: the buffers and the stages of its layers.

On the way back, a layer has sixteen dispatches:

1. The gate of the channel mix.
2. Value, transposed, with the slope of the squared relu.
3. Key and receptance, transposed.
4. Norm and token shift, added to the gradient of the residual.
5. The output, transposed.
6. Gate, group norm and bonus of every head.
7. The recurrence of every head from its end, by rows of the state: gradient of v.
8. The same by columns: gradients of k and of the initial state.
9. The recurrence once more, by columns: gradients of r and of the decay.
10. The bonus's part of the gradients of r and k, and the decay's exponents.
11. The second half of the decay's adapter, transposed.
12. r, k, v, the gate and the first half of the decay's adapter, transposed.
13. What the adapters of the mixes add to them.
14. The second halves of these adapters, transposed.
15. Their first halves, transposed.
16. Norm and token shift, added to the gradient of the residual.

The maths is that of backward_reference.py beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator

from rnn_engine.backward.context import BackwardContext, BackwardLayer
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.gpu import Buffer
from rnn_engine.versions.shared.backward_plan import BonusLayersBackward, matmul_backward, on_tokens
from rnn_engine.versions.shared.plan import Decay, LayerBuilder, check_head_size
from rnn_engine.versions.v6.layout import NUM_MIXES, ShapeV6
from rnn_engine.versions.v6.plan import (
    ATT_NORM,
    BONUS,
    FFN_NORM,
    Scratch,
    TimeMixStages,
    make_builder,
    time_mix_stages,
)


def load_backward(context: BackwardContext) -> Iterator[BackwardLayer]:
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = context.forward.model.shape
    assert isinstance(shape, ShapeV6)
    check_head_size(shape)
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
        yield matmul_backward(context, forward.recurrence.gates, shared.d_decay, shared.d_projected, scratch.projected)
        yield matmul_backward(context, forward.projections, shared.d_projected, shared.d_mixes)
        yield self._mixes_stage(builder, "add_shifted_mixes_backward", {"d_mixes": shared.d_mixes})
        yield matmul_backward(context, forward.mixes_up, self._added, self._d_mixes_hidden, scratch.mixes_hidden)
        yield matmul_backward(context, forward.mixes_down.matmul, self._d_mixes_hidden, shared.d_mixes)

    def _mixes_stage(self, builder: LayerBuilder, kernel: str, buffers: dict[str, Buffer]) -> KernelStage:
        common = {"mixes": self._scratch.mixes, "added": self._added}
        return on_tokens(builder, kernel, {"ADAPTERS": NUM_MIXES}, {**common, **buffers})
