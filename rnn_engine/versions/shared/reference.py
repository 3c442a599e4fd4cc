"""Parts of the numpy forward passes that several versions share, in f32 or f64.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights, embed, layer_norm, sigmoid, standardize

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

    For the arguments and the result see `rnn_engine.reference.RunLayers`.
    """
    x = embed(weights, ids)
    runs = PackedRuns.of(lengths)
    after = {name: np.empty(values.shape, weights.dtype) for name, values in states.items()}
    for layer in range(weights.shape.num_layers):
        block = weights.block(layer)
        before = {name: values[:, layer] for name, values in states.items()}

        mixed = layer_norm(x, block, "ln1")
        out, state = time_mix(block, mixed, runs.shift(mixed, before["att_shift"]), before, runs)
        after["att_shift"][:, layer] = runs.last(mixed)
        for name, values in state.items():
            after[name][:, layer] = values
        x = x + out

        mixed = layer_norm(x, block, "ln2")
        x = x + channel_mix(block, mixed, runs.shift(mixed, before["ffn_shift"]))
        after["ffn_shift"][:, layer] = runs.last(mixed)
        weights.watch(layer, x)
    return x, after


def run_bonus_wkv(
    r: Array, decay: Array, k: Array, v: Array, u: Array, wkv: Array, runs: PackedRuns
) -> tuple[Array, Array]:
    """Run the wkv recurrence of RWKV-5 and RWKV-6 token by token, all runs in parallel. Return (y, new `wkv`).

    y = (S + v (u * k)^T) r; S <- S diag(decay) + v k^T

    r, decay, k, v, y: [T, H, N]; u: [H, N].
    wkv: [B, H, value, key] is S: before the runs as an argument, after them in the result.
    """
    y = np.sum(r * u * k, axis=-1, keepdims=True) * v

    def step(s: Array, tokens: Array) -> None:  # s: [running, H, value, key]
        y[tokens] += (s @ r[tokens][..., np.newaxis])[..., 0]
        s *= decay[tokens][..., np.newaxis, :]
        s += v[tokens][..., np.newaxis] * k[tokens][..., np.newaxis, :]

    return y, runs.walk(wkv.astype(r.dtype), step)


def channel_mix_with_receptance(block: Block, mixed_k: Array, mixed_r: Array) -> Array:
    """Compute the channel mix of RWKV-4 to RWKV-6 after the token shift.

    `mixed_k` and `mixed_r` are [T, D], the shifted inputs of key and receptance; so is the result.
    """
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
