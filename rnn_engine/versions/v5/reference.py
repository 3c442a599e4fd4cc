"""The forward pass of RWKV-5 in numpy, in f32 or f64.

Shapes: T tokens of all runs, D width, H heads, N head size (H * N = D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights
from rnn_engine.versions.shared.reference import BonusTimeMix, channel_mix_with_static_mixes, run_blocks, static_mix
from rnn_engine.versions.v5.layout import ShapeV5, make_bonus, make_decay


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
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
    mixed = {
        kind: static_mix(block, f"att.time_mix_{kind}", x, previous) for kind in ("rkvg" if shape.has_gate else "rkv")
    }
    decay = np.broadcast_to(make_decay(block, shape), (len(x), shape.num_heads, shape.head_size))
    return BonusTimeMix.compute(block, shape, mixed, decay, make_bonus(block, shape), wkv, runs)
