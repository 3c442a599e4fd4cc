"""The forward pass of RWKV-4 in numpy, in f32 or f64. Shapes: T tokens of all runs, B runs, D width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rnn_engine.reference import Array, Block, Index, PackedRuns, Weights, sigmoid
from rnn_engine.versions.shared.reference import channel_mix_with_static_mixes, run_blocks, static_mix

_SUMS: Final = ("aa", "bb", "pp")


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int] | PackedRuns, states: Mapping[str, Array]
) -> tuple[Array, dict[str, list[Array]]]:
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
    inputs = WkvInputs(k, v, -np.exp(block("att.time_decay"))[np.newaxis], block("att.time_first")[np.newaxis])
    average, *sums = runs.recur(run_wkv, inputs, *(state[name] for name in _SUMS))
    return block.matmul(sigmoid(r) * average, "att.output.weight"), dict(zip(_SUMS, sums, strict=True))


@dataclass(frozen=True, slots=True)
class WkvInputs:
    """What the recurrence of RWKV-4 reads. e^decay is the factor by which earlier weights shrink at each token."""

    k: Array  # [T, D]
    v: Array  # [T, D]
    decay: Array  # [1, D]
    u: Array  # [1, D]


def run_wkv(inputs: WkvInputs, aa: Array, bb: Array, pp: Array, runs: PackedRuns) -> tuple[Array, ...]:
    """Run the wkv recurrence of RWKV-4. Return for each token a weighted average [T, D] of all v so far, and the sums.

    The weight of an earlier token is its e^k, decayed; the weight of the token itself is e^(u + k).
    aa, bb, pp: [B, D] before the runs. aa and bb are divided by e^pp.
    """
    k, v, decay, u = inputs.k, inputs.v, inputs.decay, inputs.u
    average = np.empty_like(k)

    def step(live: Array, tokens: Index) -> None:  # live: [running, 3, D]
        old, new = _weights(live[:, 2], u + k[tokens])
        average[tokens] = (old * live[:, 0] + new * v[tokens]) / (old * live[:, 1] + new)
        old, new = _weights(live[:, 2] + decay, k[tokens])
        exponent = np.maximum(live[:, 2] + decay, k[tokens])
        live[:, 0] = old * live[:, 0] + new * v[tokens]
        live[:, 1] = old * live[:, 1] + new
        live[:, 2] = exponent

    sums = runs.walk(np.stack([aa, bb, pp], axis=1).astype(k.dtype), step)
    return average, sums[:, 0], sums[:, 1], sums[:, 2]


def _weights(old: Array, new: Array) -> tuple[Array, Array]:
    """Return e^old and e^new, both divided by the greater of them, so that neither overflows."""
    greater = np.maximum(old, new)
    return np.exp(old - greater), np.exp(new - greater)
