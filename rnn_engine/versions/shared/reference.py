"""Parts of the numpy forward passes that several versions share, in f32 or f64.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights, embed, norm, sigmoid, standardize
from rnn_engine.versions.shared.layout import HeadsShape

TimeMix: TypeAlias = Callable[[Block, Array, Array, Mapping[str, Array], PackedRuns], tuple[Array, Mapping[str, Array]]]
"""(block, x [T, D], previous [T, D], the layer's state [B, ...] a field, runs) -> (out [T, D], the new state)."""

ChannelMix: TypeAlias = Callable[[Block, Array, Array], Array]
"""(block, x [T, D], previous [T, D]) -> [T, D]."""


def run_blocks(
    weights: Weights,
    ids: Array,
    lengths: Sequence[int],
    states: Mapping[str, Array],
    time_mix: TimeMix,
    channel_mix: ChannelMix,
) -> tuple[Array, dict[str, Array]]:
    """Run B sequences through all layers of a model in numpy, with a version's `time_mix` and `channel_mix`.

    For the arguments and the result see `rnn_engine.reference.RunLayers`. Without the field `ffn_shift`, the channel
    mix has no token shift.
    """
    kind = weights.shape.norm
    x = embed(weights, ids)
    runs = PackedRuns.of(lengths)
    after = {name: np.empty(values.shape, weights.dtype) for name, values in states.items()}
    for layer in range(weights.shape.num_layers):
        block = weights.block(layer)
        before = {name: values[:, layer] for name, values in states.items()}

        mixed = norm(x, block, "ln1", kind)
        out, state = time_mix(block, mixed, runs.shift(mixed, before["att_shift"]), before, runs)
        after["att_shift"][:, layer] = runs.last(mixed)
        for name, values in state.items():
            after[name][:, layer] = values
        x = x + out

        mixed = norm(x, block, "ln2", kind)
        if "ffn_shift" in before:
            x = x + channel_mix(block, mixed, runs.shift(mixed, before["ffn_shift"]))
            after["ffn_shift"][:, layer] = runs.last(mixed)
        else:
            x = x + channel_mix(block, mixed, mixed)
        weights.watch(layer, x)
    return x, after


@dataclass(frozen=True, slots=True)
class BonusWkvInputs:
    """The vectors [T, H, N] that the recurrence of RWKV-5 and RWKV-6 reads."""

    r: Array
    decay: Array
    k: Array
    v: Array

    def advance(self, s: Array, tokens: Array) -> None:
        """Change the states `s` [running, H, value, key] of some runs by their next tokens, which are at `tokens`."""
        s *= self.decay[tokens][..., np.newaxis, :]
        s += self.v[tokens][..., np.newaxis] * self.k[tokens][..., np.newaxis, :]


@dataclass(frozen=True, slots=True)
class BonusTimeMix:
    """What a time mix of RWKV-5 or RWKV-6 computes after the token shift, for its result and for its backward pass."""

    inputs: BonusWkvInputs
    u: Array  # [H, N]
    gate: Array | None  # [T, D] before its activation; None for RWKV-5.0, which has no gate
    y: Array  # [T, H, N] the output of the recurrence
    normed: Array  # [T, D] after the group norm
    out: Array  # [T, D]
    wkv: Array  # [B, H, value, key] the state after the runs

    @classmethod
    def compute(
        cls,
        block: Block,
        shape: HeadsShape,
        mixed: Mapping[str, Array],
        decay: Array,
        u: Array,
        wkv: Array,
        runs: PackedRuns,
    ) -> BonusTimeMix:
        """Run from shifted inputs [T, D], `decay` [T, H, N], `u` [H, N] and the state `wkv` [B, H, value, key]."""
        projected = {kind: block.matmul(x, BONUS_MATRICES[kind]) for kind, x in mixed.items()}
        r, k, v = (projected[kind].reshape(decay.shape) for kind in "rkv")
        inputs, gate = BonusWkvInputs(r, decay, k, v), projected.get("g")
        y, wkv = run_bonus_wkv(inputs, u, wkv, runs)
        normed = group_norm(y, block, shape.group_norm_epsilon).reshape(len(y), -1)
        gated = normed if gate is None else normed * silu(gate)
        return cls(inputs, u, gate, y, normed, block.matmul(gated, "att.output.weight"), wkv)


BONUS_MATRICES: Final = {
    "r": "att.receptance.weight",
    "k": "att.key.weight",
    "v": "att.value.weight",
    "g": "att.gate.weight",
}
"""The matrices of the time mixes of RWKV-5 and RWKV-6, by the letters of their results."""


def run_bonus_wkv(inputs: BonusWkvInputs, u: Array, wkv: Array, runs: PackedRuns) -> tuple[Array, Array]:
    """Run the wkv recurrence of RWKV-5 and RWKV-6 token by token, all runs in parallel. Return (y, new `wkv`).

    y = (S + v (u * k)^T) r; S <- S diag(decay) + v k^T

    y: [T, H, N]; u: [H, N].
    wkv: [B, H, value, key] is S: before the runs as an argument, after them in the result.
    """
    y = bonus(inputs.r, inputs.k, inputs.v, u)

    def step(s: Array, tokens: Array) -> None:
        y[tokens] += (s @ inputs.r[tokens][..., np.newaxis])[..., 0]
        inputs.advance(s, tokens)

    return y, runs.walk(wkv.astype(y.dtype), step)


def bonus(r: Array, k: Array, v: Array, u: Array) -> Array:
    """Return v times the sum of r * u * k in each head, for the token itself; all [T, H, N], u [H, N]."""
    added: Array = np.sum(r * u * k, axis=-1, keepdims=True) * v
    return added


def channel_mix_with_receptance(block: Block, mixed_k: Array, mixed_r: Array) -> Array:
    """Compute the gated channel mix from the shifted inputs [T, D] of key and receptance: -> [T, D]."""
    k = np.square(np.maximum(block.matmul(mixed_k, "ffn.key.weight"), 0))
    out: Array = sigmoid(block.matmul(mixed_r, "ffn.receptance.weight")) * block.matmul(k, "ffn.value.weight")
    return out


def static_mix(block: Block, name: str, x: Array, previous: Array) -> Array:
    """Apply the token shift of RWKV-4 and RWKV-5 with the mix vector `name`: x, previous [T, D] -> [T, D]."""
    mix = block(name)
    mixed: Array = x * mix + previous * (1 - mix)
    return mixed


def channel_mix_with_static_mixes(block: Block, x: Array, previous: Array) -> Array:
    """Compute the channel mix of RWKV-4 and RWKV-5, token shift included: x, previous [T, D] -> [T, D]."""
    mixed = (static_mix(block, f"ffn.time_mix_{kind}", x, previous) for kind in "kr")
    return channel_mix_with_receptance(block, *mixed)


def group_norm(y: Array, block: Block, epsilon: float) -> Array:
    """Apply the group norm of a time mix: normalise each head of y [T, H, N], then apply weight and bias."""
    weight, bias = (block(f"att.ln_x.{part}").reshape(y.shape[1:]) for part in ("weight", "bias"))
    return standardize(y, epsilon) * weight + bias


def silu(x: Array) -> Array:
    """Return x * sigmoid(x)."""
    out: Array = x * sigmoid(x)
    return out


def double_exp_decay(w: Array) -> Array:
    """Return exp(-exp(w)) without overflow."""
    decay: Array = np.exp(-np.exp(np.minimum(w, 80)))  # e^80 is finite in f32
    return decay
