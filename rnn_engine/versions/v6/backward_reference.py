"""The backward pass of RWKV-6 in numpy, in f32 or f64.

Each function follows one of the forward pass (`reference.py`). A gradient has the name of its variable after a d.

Shapes: T tokens of all runs, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights
from rnn_engine.reference.backward import tanh_backward
from rnn_engine.versions.shared.backward_reference import (
    Pullback,
    bonus_time_mix_backward,
    channel_mix_with_receptance_backward,
    double_exp_decay_backward,
    mixes_backward,
    run_blocks_backward,
)
from rnn_engine.versions.v6.layout import ShapeV6
from rnn_engine.versions.v6.reference import MIX_KINDS, Activations, channel_mix_inputs


def run_backward(
    weights: Weights, inputs: Sequence[Array], dx: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> dict[str, Array]:
    """Run the layers of RWKV-6 backward; see `rnn_engine.reference.RunBackward`."""
    assert isinstance(weights.shape, ShapeV6)
    time_mix = partial(_time_mix, weights.shape)
    return run_blocks_backward(weights, inputs, dx, lengths, states, time_mix, channel_mix_backward)


def _time_mix(
    shape: ShapeV6, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
) -> tuple[Array, Pullback]:
    """Compute a layer's time mix; see `rnn_engine.versions.shared.backward_reference.DifferentiableTimeMix`."""
    activations = Activations.compute(shape, block, x, previous, state["wkv"], runs)
    return activations.time_mix.out, partial(_time_mix_backward, shape, block, activations, state["wkv"], runs)


def _time_mix_backward(
    shape: ShapeV6, block: Block, forward: Activations, wkv: Array, runs: PackedRuns, d_out: Array
) -> tuple[Array, Array, dict[str, Array]]:
    shifted = forward.shifted
    d_mixed, d_decay, d_wkv = bonus_time_mix_backward(d_out, block, shape, forward.time_mix, wkv, runs)
    d_input = double_exp_decay_backward(d_decay.reshape(d_out.shape), shifted.decay_input)
    d_hidden = tanh_backward(d_input @ block("att.time_decay_w2").T, shifted.decay_hidden)
    d_mixed["w"] = d_hidden @ block("att.time_decay_w1").T

    dx, d_previous = mixes_backward(d_mixed, shifted.mixes)
    d_mixes = np.stack([d_mixed[kind] * shifted.delta for kind in MIX_KINDS])  # [5, T, D]
    d_hidden = np.swapaxes(d_mixes @ np.swapaxes(block("att.time_maa_w2"), -1, -2), 0, 1)  # [T, 5, R_mix]
    d_hidden = tanh_backward(d_hidden, shifted.mix_hidden).reshape(len(d_out), -1)
    d_mixed_x = d_hidden @ block("att.time_maa_w1").T
    dx_more, d_previous_more = mixes_backward({"x": d_mixed_x}, {"x": block("att.time_maa_x")})
    return dx + dx_more, d_previous + d_previous_more, {"wkv": d_wkv}


def channel_mix_backward(d_out: Array, block: Block, x: Array, previous: Array) -> tuple[Array, Array]:
    """Return the gradients of x and of previous from that of the channel mix of RWKV-6. All are [T, D]."""
    dk, dr = channel_mix_with_receptance_backward(d_out, block, *channel_mix_inputs(block, x, previous))
    return mixes_backward({"k": dk, "r": dr}, {kind: block(f"ffn.time_maa_{kind}") for kind in "kr"})
