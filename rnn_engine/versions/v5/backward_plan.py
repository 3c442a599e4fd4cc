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
from rnn_engine.versions.shared.backward_plan import BonusLayersBackward, matmul_backward
from rnn_engine.versions.shared.plan import check_head_size
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
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = context.forward.model.shape
    assert isinstance(shape, ShapeV5)
    check_head_size(shape)
    scratch = make_scratch(context.forward, shape)
    layers = BonusLayersBackward(
        context,
        shape,
        mixes=scratch.mixes,
        projected=scratch.projected,
        bonus="bonus",
        has_gate=shape.has_gate,
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
