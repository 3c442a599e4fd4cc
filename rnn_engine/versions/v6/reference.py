"""RWKV-6 in numpy, in f32 or f64. Shapes: T tokens of all runs, D width, H heads, N head size (H * N = D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rnn_engine.reference.runs import PackedRuns
from rnn_engine.reference.weights import Array, Block, Weights
from rnn_engine.versions.shared.reference import (
    channel_mix_with_receptance,
    double_exp_decay,
    group_norm,
    run_blocks,
    run_bonus_wkv,
    silu,
)
from rnn_engine.versions.v6.shape import NUM_MIXES

_GROUP_NORM_EPSILON: Final = 64e-5


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Run B sequences through all layers; see `rnn_engine.reference.runs.RunLayers`."""
    return run_blocks(weights, ids, lengths, states, time_mix, channel_mix)


def time_mix(
    block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
) -> tuple[Array, dict[str, Array]]:
    """See `rnn_engine.versions.shared.reference.TimeMix`."""
    heads = (len(x), *state["wkv"].shape[1:3])

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
    y = group_norm(y, block, _GROUP_NORM_EPSILON).reshape(x.shape)
    return block.matmul(y * g, "att.output.weight"), {"wkv": wkv}


def channel_mix(block: Block, x: Array, previous: Array) -> Array:
    """x, previous: [T, D] -> [T, D]."""
    delta = previous - x
    return channel_mix_with_receptance(block, x + delta * block("ffn.time_maa_k"), x + delta * block("ffn.time_maa_r"))
