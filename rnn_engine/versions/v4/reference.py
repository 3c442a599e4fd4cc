"""The forward pass of RWKV-4 in numpy, in f32 or f64. Shapes: T tokens of all runs, B runs, D width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights, sigmoid
from rnn_engine.versions.shared.reference import channel_mix_with_static_mixes, run_blocks, static_mix

_SUMS: Final = ("aa", "bb", "pp")


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Run B sequences through all layers of RWKV-4; see `rnn_engine.reference.RunLayers`."""
    return run_blocks(weights, ids, lengths, states, time_mix, channel_mix_with_static_mixes)


def time_mix(
    block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
) -> tuple[Array, dict[str, Array]]:
    """Compute the time mix of RWKV-4; see `rnn_engine.versions.shared.reference.TimeMix`."""
    r, k, v = (
        block.matmul(static_mix(block, f"att.time_mix_{name[0]}", x, previous), f"att.{name}.weight")
        for name in ("receptance", "key", "value")
    )
    sums = np.stack([state[name] for name in _SUMS], axis=1).astype(x.dtype)  # [B, 3, D]
    average, sums = run_wkv(k, v, -np.exp(block("att.time_decay")), block("att.time_first"), sums, runs)
    out = block.matmul(sigmoid(r) * average, "att.output.weight")
    return out, {name: sums[:, place] for place, name in enumerate(_SUMS)}


def run_wkv(k: Array, v: Array, decay: Array, u: Array, sums: Array, runs: PackedRuns) -> tuple[Array, Array]:
    """Run the wkv recurrence of RWKV-4. Return for each token a weighted average of all v so far, and the new `sums`.

    The weight of an earlier token is its e^k, decayed; the weight of the token itself is e^(u + k).
    k, v and the average: [T, D].
    decay, u: [D]. e^decay is the factor by which earlier weights shrink at each token.
    sums: [B, 3, D] are aa, bb and pp before the runs. aa and bb are divided by e^pp.
    """
    average = np.empty_like(k)

    def step(live: Array, tokens: Array) -> None:  # live: [running, 3, D]
        old, new = _weights(live[:, 2], u + k[tokens])
        average[tokens] = (old * live[:, 0] + new * v[tokens]) / (old * live[:, 1] + new)
        old, new = _weights(live[:, 2] + decay, k[tokens])
        exponent = np.maximum(live[:, 2] + decay, k[tokens])
        live[:, 0] = old * live[:, 0] + new * v[tokens]
        live[:, 1] = old * live[:, 1] + new
        live[:, 2] = exponent

    return average, runs.walk(sums, step)


def _weights(old: Array, new: Array) -> tuple[Array, Array]:
    """Return e^old and e^new, both divided by the greater of them, so that neither overflows."""
    greater = np.maximum(old, new)
    return np.exp(old - greater), np.exp(new - greater)
