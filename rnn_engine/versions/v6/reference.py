"""The forward pass of RWKV-6 in numpy, in f32 or f64.

Shapes: T tokens of all runs, D width, H heads, N head size (H * N = D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights
from rnn_engine.versions.shared.reference import (
    channel_mix_with_receptance,
    double_exp_decay,
    group_norm,
    run_blocks,
    run_bonus_wkv,
    silu,
)
from rnn_engine.versions.v6.layout import NUM_MIXES, ShapeV6


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Run B sequences through all layers of RWKV-6; see `rnn_engine.reference.RunLayers`."""
    assert isinstance(weights.shape, ShapeV6)
    return run_blocks(weights, ids, lengths, states, partial(time_mix, weights.shape), channel_mix)


def time_mix(
    shape: ShapeV6, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
) -> tuple[Array, dict[str, Array]]:
    """Compute the time mix of RWKV-6; see `rnn_engine.versions.shared.reference.TimeMix`."""
    heads = (len(x), shape.num_heads, shape.head_size)

    delta = previous - x
    inner = np.tanh((x + delta * block("att.time_maa_x")) @ block("att.time_maa_w1")).reshape(len(x), NUM_MIXES, -1)
    added = np.swapaxes(inner, 0, 1) @ block("att.time_maa_w2")  # [5, T, D]
    x_w, x_k, x_v, x_r, x_g = (
        x + delta * (block(f"att.time_maa_{kind}") + z) for kind, z in zip("wkvrg", added, strict=True)
    )

    r, k, v = (
        block.matmul(mixed, f"att.{name}.weight").reshape(heads)
        for mixed, name in ((x_r, "receptance"), (x_k, "key"), (x_v, "value"))
    )
    g = silu(block.matmul(x_g, "att.gate.weight"))
    w = block("att.time_decay").reshape(-1) + np.tanh(x_w @ block("att.time_decay_w1")) @ block("att.time_decay_w2")
    decay = double_exp_decay(w).reshape(heads)
    y, wkv = run_bonus_wkv(r, decay, k, v, block("att.time_faaaa"), state["wkv"], runs)
    y = group_norm(y, block, shape.group_norm_epsilon).reshape(x.shape)
    return block.matmul(y * g, "att.output.weight"), {"wkv": wkv}


def channel_mix(block: Block, x: Array, previous: Array) -> Array:
    """Compute the channel mix of RWKV-6, token shift included: x, previous [T, D] -> [T, D]."""
    delta = previous - x
    return channel_mix_with_receptance(block, x + delta * block("ffn.time_maa_k"), x + delta * block("ffn.time_maa_r"))
