"""The forward pass of RWKV-7 in numpy, in f32 or f64.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights, sigmoid
from rnn_engine.versions.shared.reference import group_norm, run_blocks
from rnn_engine.versions.v7.layout import ShapeV7

_KEY_NORM_FLOOR: Final = 1e-12
_DECAY_RATE: Final = -0.606531  # -exp(-1/2), rounded as in the training of models


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Run B sequences through all layers of RWKV-7; see `rnn_engine.reference.RunLayers`."""
    assert isinstance(weights.shape, ShapeV7)
    return run_blocks(weights, ids, lengths, states, TimeMix(weights.shape), channel_mix)


class TimeMix:
    """The time mix of RWKV-7 in numpy. One instance runs all layers: later ones use the value of the first."""

    def __init__(self, shape: ShapeV7) -> None:
        self._shape = shape
        self._v_first: Array | None = None  # [T, D]

    def __call__(
        self, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
    ) -> tuple[Array, dict[str, Array]]:
        """Compute the time mix of RWKV-7 for the next layer; see `rnn_engine.versions.shared.reference.TimeMix`."""
        heads = (len(x), self._shape.num_heads, self._shape.head_size)

        delta = previous - x
        x_r, x_w, x_k, x_v, x_a, x_g = (x + delta * block(f"att.x_{kind}") for kind in "rwkvag")

        r = block.matmul(x_r, "att.receptance.weight").reshape(heads)
        k = block.matmul(x_k, "att.key.weight")
        v = block.matmul(x_v, "att.value.weight")
        if self._v_first is None:
            self._v_first = v
        else:
            v = v + (self._v_first - v) * sigmoid(block("att.v0") + x_v @ block("att.v1") @ block("att.v2"))
        w = block("att.w0") + np.tanh(x_w @ block("att.w1")) @ block("att.w2")
        decay = np.exp(_DECAY_RATE * sigmoid(w)).reshape(heads)
        a = sigmoid(block("att.a0") + x_a @ block("att.a1") @ block("att.a2"))  # in-context learning rate
        g = sigmoid(x_g @ block("att.g1")) @ block("att.g2")

        removal_key = normalize((k * block("att.k_k")).reshape(heads))
        k = (k * (1 + (a - 1) * block("att.k_a"))).reshape(heads)
        v_heads = v.reshape(heads)
        y, wkv = run_wkv(r, decay, k, v_heads, -removal_key, removal_key * a.reshape(heads), state["wkv"], runs)

        y = group_norm(y, block, self._shape.group_norm_epsilon)
        bonus = np.sum(r * k * block("att.r_k").reshape(heads[1:]), axis=-1, keepdims=True) * v_heads
        out = block.matmul((y + bonus).reshape(x.shape) * g, "att.output.weight")
        return out, {"wkv": wkv}


def run_wkv(
    r: Array, decay: Array, k: Array, v: Array, a: Array, b: Array, wkv: Array, runs: PackedRuns
) -> tuple[Array, Array]:
    """Run the wkv recurrence of RWKV-7 token by token, all runs in parallel. Return (y, new `wkv`).

    S <- S diag(decay) + (S a) b^T + v k^T; y = S r

    r, decay, k, v, a, b, y: [T, H, N].
    wkv: [B, H, value, key] is S: before the runs as an argument, after them in the result.
    """
    y = np.empty_like(r)
    r, v, a, decay = r[..., np.newaxis], v[..., np.newaxis], a[..., np.newaxis], decay[..., np.newaxis, :]
    rows = np.stack([b, k], axis=-2)  # [T, H, 2, key]

    def step(s: Array, tokens: Array) -> None:  # s: [running, H, value, key]
        columns = np.concatenate([s @ a[tokens], v[tokens]], axis=-1)  # [running, H, value, 2]
        s *= decay[tokens]
        s += columns @ rows[tokens]
        y[tokens] = (s @ r[tokens])[..., 0]

    return y, runs.walk(wkv.astype(r.dtype), step)


def channel_mix(block: Block, x: Array, previous: Array) -> Array:
    """Compute the channel mix of RWKV-7, token shift included: x, previous [T, D] -> [T, D]."""
    k = block.matmul(x + (previous - x) * block("ffn.x_k"), "ffn.key.weight")
    return block.matmul(np.square(np.maximum(k, 0)), "ffn.value.weight")


def normalize(x: Array) -> Array:
    """Scale x to Euclidean length 1 along its last axis."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    unit: Array = x / np.maximum(length, _KEY_NORM_FLOOR)
    return unit
