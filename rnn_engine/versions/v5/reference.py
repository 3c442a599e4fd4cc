"""The forward and backward passes of RWKV-5 in numpy, in f32 or f64.

Shapes: T tokens of all runs, D width, H heads, N head size (H * N = D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights
from rnn_engine.versions.shared.reference import (
    BonusTimeMix,
    Pullback,
    bonus_time_mix_backward,
    channel_mix_with_static_mixes,
    channel_mix_with_static_mixes_backward,
    run_blocks,
    run_blocks_backward,
    static_mix,
    static_mixes_backward,
)
from rnn_engine.versions.v5.layout import ShapeV5, make_bonus, make_decay


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int] | PackedRuns, states: Mapping[str, Array]
) -> tuple[Array, dict[str, list[Array]]]:
    """Run B sequences through all layers of RWKV-5; see `rnn_engine.reference.RunLayers`."""
    assert isinstance(weights.shape, ShapeV5)
    return run_blocks(weights, ids, lengths, states, partial(time_mix, weights.shape), channel_mix_with_static_mixes)


def time_mix(
    shape: ShapeV5, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
) -> tuple[Array, dict[str, Array]]:
    """Compute the time mix of RWKV-5; see `rnn_engine.versions.shared.reference.TimeMix`."""
    activations = compute_time_mix(shape, block, x, previous, state["wkv"], runs)
    return activations.out, {"wkv": activations.wkv}


def compute_time_mix(
    shape: ShapeV5, block: Block, x: Array, previous: Array, wkv: Array, runs: PackedRuns
) -> BonusTimeMix:
    """Return all that the time mix of RWKV-5 computes from x [T, D]. wkv: [B, H, value, key] before the runs."""
    kinds = "rkvg" if shape.has_gate else "rkv"  # of the vectors that have a token shift of their own
    mixed = {kind: static_mix(block, f"att.time_mix_{kind}", x, previous) for kind in kinds}
    decay = np.broadcast_to(make_decay(block, shape), (len(x), shape.num_heads, shape.head_size))
    return BonusTimeMix.compute(block, shape, mixed, decay, make_bonus(block, shape), wkv, runs)


# The backward pass. Each function follows one of the forward pass. A gradient has the name of its variable after a d.


def run_backward(
    weights: Weights, inputs: Sequence[Array], dx: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> dict[str, Array]:
    """Run the layers of RWKV-5 backward; see `rnn_engine.reference.RunBackward`."""
    assert isinstance(weights.shape, ShapeV5)
    time_mix = partial(_time_mix, weights.shape)
    return run_blocks_backward(weights, inputs, dx, lengths, states, time_mix, channel_mix_with_static_mixes_backward)


def _time_mix(
    shape: ShapeV5, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
) -> tuple[Array, Pullback]:
    """Compute a layer's time mix; see `rnn_engine.versions.shared.reference.DifferentiableTimeMix`."""
    activations = compute_time_mix(shape, block, x, previous, state["wkv"], runs)
    return activations.out, partial(_time_mix_backward, shape, block, activations, state["wkv"], runs)


def _time_mix_backward(
    shape: ShapeV5, block: Block, forward: BonusTimeMix, wkv: Array, runs: PackedRuns, d_out: Array
) -> tuple[Array, Array, dict[str, Array]]:
    d_mixed, _, d_wkv = bonus_time_mix_backward(d_out, block, shape, forward, wkv, runs)
    dx, d_previous = static_mixes_backward(block, "att", d_mixed)
    return dx, d_previous, {"wkv": d_wkv}
