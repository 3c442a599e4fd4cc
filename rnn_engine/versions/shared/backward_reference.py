"""Parts of the numpy backward passes that several versions share, in f32 or f64.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights, layer_norm
from rnn_engine.reference.backward import layer_norm_backward, standardize_backward

Pullback: TypeAlias = Callable[[Array], tuple[Array, Array, Mapping[str, Array]]]
"""The backward pass of a time mix: gradient of its result [T, D] -> those of x, of previous, and of the layer's state.

The state's gradient lacks the token shift, which `run_blocks_backward` adds.
"""

DifferentiableTimeMix: TypeAlias = Callable[
    [Block, Array, Array, Mapping[str, Array], PackedRuns], tuple[Array, Pullback]
]
"""(block, x [T, D], previous [T, D], the layer's state [B, ...] a field, runs) -> (out [T, D], its backward pass)."""

ChannelMixBackward: TypeAlias = Callable[[Array, Block, Array, Array], tuple[Array, Array]]
"""(gradient of the result [T, D], block, x [T, D], previous [T, D]) -> gradients of x and of previous [T, D]."""


def run_blocks_backward(
    weights: Weights,
    inputs: Sequence[Array],
    dx: Array,
    lengths: Sequence[int],
    states: Mapping[str, Array],
    time_mix: DifferentiableTimeMix,
    channel_mix_backward: ChannelMixBackward,
) -> dict[str, Array]:
    """Run all layers of a model backward in numpy: compute each layer once more from its input, then its gradients.

    For the arguments and the result see `rnn_engine.reference.RunBackward`.
    """
    runs = PackedRuns.of(lengths)
    gradients = {name: np.empty(values.shape, weights.dtype) for name, values in states.items()}
    for layer in reversed(range(weights.shape.num_layers)):
        block = weights.block(layer)
        before = {name: values[:, layer] for name, values in states.items()}

        x = inputs[layer]
        mixed = layer_norm(x, block, "ln1")
        out, time_mix_backward = time_mix(block, mixed, runs.shift(mixed, before["att_shift"]), before, runs)
        middle = x + out

        mixed = layer_norm(middle, block, "ln2")
        d_mixed, d_previous = channel_mix_backward(dx, block, mixed, runs.shift(mixed, before["ffn_shift"]))
        d_shifted, gradients["ffn_shift"][:, layer] = runs.shift_backward(d_previous)
        dx = dx + layer_norm_backward(d_mixed + d_shifted, middle, block, "ln2")

        d_mixed, d_previous, d_state = time_mix_backward(dx)
        d_shifted, gradients["att_shift"][:, layer] = runs.shift_backward(d_previous)
        dx = dx + layer_norm_backward(d_mixed + d_shifted, x, block, "ln1")
        for name, values in d_state.items():
            gradients[name][:, layer] = values
    return gradients


def group_norm_backward(dy: Array, y: Array, block: Block, epsilon: float) -> Array:
    """Return the gradient [T, H, N] of `y`, the recurrence's output, from that of its group norm, [T, H, N]."""
    return standardize_backward(dy * block("att.ln_x.weight").reshape(y.shape[1:]), y, epsilon)


def squared_relu_backward(dy: Array, x: Array) -> Array:
    """Return the gradient of x from that of y = max(x, 0)^2."""
    dx: Array = 2 * dy * np.maximum(x, 0)
    return dx
