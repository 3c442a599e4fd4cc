"""The backward pass of RWKV-5 in numpy, in f32 or f64.

Each function follows one of the forward pass (`reference.py`). A gradient has the name of its variable after a d.

Shapes: T tokens of all runs, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from rnn_engine.reference import Array, Block, PackedRuns, Weights
from rnn_engine.versions.shared.backward_reference import (
    Pullback,
    bonus_time_mix_backward,
    channel_mix_with_static_mixes_backward,
    run_blocks_backward,
    static_mixes_backward,
)
from rnn_engine.versions.shared.reference import BonusTimeMix
from rnn_engine.versions.v5.layout import ShapeV5
from rnn_engine.versions.v5.reference import compute_time_mix


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
    """Compute a layer's time mix; see `rnn_engine.versions.shared.backward_reference.DifferentiableTimeMix`."""
    activations = compute_time_mix(shape, block, x, previous, state["wkv"], runs)
    return activations.out, partial(_time_mix_backward, shape, block, activations, state["wkv"], runs)


def _time_mix_backward(
    shape: ShapeV5, block: Block, forward: BonusTimeMix, wkv: Array, runs: PackedRuns, d_out: Array
) -> tuple[Array, Array, dict[str, Array]]:
    d_mixed, _, d_wkv = bonus_time_mix_backward(d_out, block, shape, forward, wkv, runs)
    dx, d_previous = static_mixes_backward(block, "att", d_mixed)
    return dx, d_previous, {"wkv": d_wkv}
