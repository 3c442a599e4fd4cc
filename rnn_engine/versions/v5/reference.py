"""The forward pass of RWKV-5 in numpy, in f32 or f64.

Shapes: T tokens of all runs, D width, H heads, N head size (H * N = D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights
from rnn_engine.versions.shared.reference import (
    channel_mix_with_static_mixes,
    group_norm,
    run_blocks,
    run_bonus_wkv,
    silu,
    static_mix,
)
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
    heads = (len(x), shape.num_heads, shape.head_size)

    def project(name: str, kind: str) -> Array:
        return block.matmul(static_mix(block, f"att.time_mix_{kind}", x, previous), f"att.{name}.weight")

    r, k, v = (project(name, name[0]).reshape(heads) for name in ("receptance", "key", "value"))
    decay = np.broadcast_to(make_decay(block, shape), heads)
    y, wkv = run_bonus_wkv(r, decay, k, v, make_bonus(block, shape), state["wkv"], runs)
    y = group_norm(y, block, shape.group_norm_epsilon).reshape(x.shape)
    if shape.has_gate:
        y = y * silu(project("gate", "g"))
    return block.matmul(y, "att.output.weight"), {"wkv": wkv}
