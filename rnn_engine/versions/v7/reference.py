"""The forward pass of RWKV-7 in numpy, in f32 or f64.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights, sigmoid
from rnn_engine.versions.shared.reference import bonus, group_norm, run_blocks
from rnn_engine.versions.v7.layout import ShapeV7

KEY_NORM_FLOOR: Final = 1e-12
DECAY_RATE: Final = -0.606531  # -exp(-1/2), rounded as in the training of models


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
        activations = Activations.compute(self._shape, block, x, previous, self._v_first, state["wkv"], runs)
        if self._v_first is None:
            self._v_first = activations.v
        return activations.out, {"wkv": activations.wkv}


@dataclass(frozen=True, slots=True)
class WkvInputs:
    """The vectors [T, H, N] that the recurrence of RWKV-7 reads: S <- S diag(decay) + (S a) b^T + v k^T; y = S r."""

    r: Array
    decay: Array
    k: Array
    v: Array
    a: Array
    b: Array

    def advance(self, s: Array, tokens: Array) -> None:
        """Change the states `s` [running, H, value, key] of some runs by their next tokens, which are at `tokens`."""
        removed = s @ self.a[tokens][..., np.newaxis]  # [running, H, value, 1]
        columns = np.concatenate([removed, self.v[tokens][..., np.newaxis]], axis=-1)
        rows = np.concatenate([self.b[tokens][..., np.newaxis, :], self.k[tokens][..., np.newaxis, :]], axis=-2)
        s *= self.decay[tokens][..., np.newaxis, :]
        s += columns @ rows


@dataclass(frozen=True, slots=True)
class Activations:
    """What a layer's time mix computes for T tokens, for its result and for its backward pass."""

    k: Array  # [T, D] before the in-context learning rate acts on it
    v: Array  # [T, D] before the value residual
    v_rate: Array | None  # [T, D] how much of the first layer's value replaces v; None in the first layer
    decay_hidden: Array  # [T, R_w] after tanh
    decay_rate: Array  # [T, D] after the sigmoid
    a: Array  # [T, D] the in-context learning rate
    gate_hidden: Array  # [T, R_g] after the sigmoid
    gate: Array  # [T, D], ones without an adapter for it
    inputs: WkvInputs
    y: Array  # [T, H, N] the output of the recurrence
    normed: Array  # [T, D] after the group norm, if there is one, with the bonus
    out: Array  # [T, D]
    wkv: Array  # [B, H, value, key] the state after the runs

    @classmethod
    def compute(
        cls,
        shape: ShapeV7,
        block: Block,
        x: Array,
        previous: Array,
        v_first: Array | None,
        wkv: Array,
        runs: PackedRuns,
    ) -> Activations:
        """Run the time mix of RWKV-7 on x [T, D]. `v_first` [T, D] is the first layer's value; None in that layer."""
        heads = (len(x), shape.num_heads, shape.head_size)
        delta = previous - x
        x_r, x_w, x_k, x_v, x_a = (x + delta * block(f"att.x_{kind}") for kind in "rwkva")

        r = block.matmul(x_r, "att.receptance.weight")
        k = block.matmul(x_k, "att.key.weight")
        v = block.matmul(x_v, "att.value.weight")
        decay_hidden = np.tanh(x_w @ block("att.w1"))
        decay_rate = sigmoid(block("att.w0") + decay_hidden @ block("att.w2"))
        a = sigmoid(block("att.a0") + x_a @ block("att.a1") @ block("att.a2"))
        gate_hidden, gate = np.empty((len(x), 0), x.dtype), np.ones_like(x)
        if block.has("att.g1"):
            gate_hidden = sigmoid((x + delta * block("att.x_g")) @ block("att.g1"))
            gate = gate_hidden @ block("att.g2")
        if v_first is None:
            v_rate, used_v = None, v
        else:
            v_rate = sigmoid(block("att.v0") + x_v @ block("att.v1") @ block("att.v2"))
            used_v = v + (v_first - v) * v_rate

        removal_key = normalize((k * block("att.k_k")).reshape(heads))
        inputs = WkvInputs(
            r=r.reshape(heads),
            decay=np.exp(DECAY_RATE * decay_rate).reshape(heads),
            k=(k * (1 + (a - 1) * block("att.k_a"))).reshape(heads),
            v=used_v.reshape(heads),
            a=-removal_key,
            b=removal_key * a.reshape(heads),
        )
        y, wkv = run_wkv(inputs, wkv, runs)
        normed = group_norm(y, block, shape.group_norm_epsilon) if block.has("att.ln_x.weight") else y.copy()
        normed += bonus(inputs.r, inputs.k, inputs.v, block("att.r_k").reshape(heads[1:]))
        normed = normed.reshape(x.shape)
        out = block.matmul(normed * gate, "att.output.weight")
        return cls(k, v, v_rate, decay_hidden, decay_rate, a, gate_hidden, gate, inputs, y, normed, out, wkv)


def first_value(block: Block, x: Array, previous: Array) -> Array:
    """Return the first layer's value [T, D], which later layers use, from the input x [T, D] of its time mix."""
    return block.matmul(x + (previous - x) * block("att.x_v"), "att.value.weight")


def run_wkv(inputs: WkvInputs, wkv: Array, runs: PackedRuns) -> tuple[Array, Array]:
    """Run RWKV-7's recurrence, all runs in parallel; return y [T, H, N] and the state [B, H, value, key]."""
    y = np.empty_like(inputs.r)

    def step(s: Array, tokens: Array) -> None:
        inputs.advance(s, tokens)
        y[tokens] = (s @ inputs.r[tokens][..., np.newaxis])[..., 0]

    return y, runs.walk(wkv.astype(y.dtype), step)


def channel_mix(block: Block, x: Array, previous: Array) -> Array:
    """Compute the channel mix of RWKV-7, token shift included: x, previous [T, D] -> [T, D]."""
    k = block.matmul(x + (previous - x) * block("ffn.x_k"), "ffn.key.weight")
    return block.matmul(np.square(np.maximum(k, 0)), "ffn.value.weight")


def normalize(x: Array) -> Array:
    """Scale x to Euclidean length 1 along its last axis."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    unit: Array = x / np.maximum(length, KEY_NORM_FLOOR)
    return unit
