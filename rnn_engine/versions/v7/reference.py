"""The forward and backward passes of RWKV-7 in numpy, in f32 or f64.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from rnn_engine.reference import Array, Block, Index, PackedRuns, Weights, layer_norm, mix, sigmoid
from rnn_engine.reference.backward import sigmoid_backward, tanh_backward
from rnn_engine.versions.shared.reference import (
    BonusWkvInputs,
    Pullback,
    add_bonus_backward,
    bonus,
    group_norm,
    group_norm_backward,
    run_blocks,
    run_blocks_backward,
    squared_relu_backward,
    vector_mixes_backward,
)
from rnn_engine.versions.v7.layout import ShapeV7

KEY_NORM_FLOOR: Final = 1e-12
DECAY_RATE: Final = -0.606531  # -exp(-1/2), rounded as in the training of models


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int] | PackedRuns, states: Mapping[str, Array]
) -> tuple[Array, dict[str, list[Array]]]:
    """Run B sequences through all layers of RWKV-7; see `rnn_engine.reference.RunLayers`."""
    return run_blocks(weights, ids, lengths, states, TimeMix(weights), channel_mix)


class TimeMix:
    """The time mix of RWKV-7 in numpy. One instance runs all layers: later ones use the value of the first."""

    def __init__(self, weights: Weights) -> None:
        assert isinstance(weights.shape, ShapeV7)
        self._shape = weights.shape
        self._keep = weights.keep
        self._v_first: Array | None = weights.carried[1] if weights.carried else None  # [T, D]

    def __call__(
        self, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
    ) -> tuple[Array, dict[str, Array]]:
        """Compute the time mix of RWKV-7 for the next layer; see `rnn_engine.versions.shared.reference.TimeMix`."""
        activations = Activations.compute(self._shape, block, x, previous, self._v_first, state["wkv"], runs)
        if self._v_first is None:
            self._v_first = activations.v
            self._keep(activations.v)
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

    def advance(self, s: Array, tokens: Index) -> None:
        """Change the states `s` [running, H, value, key] of some runs by their next tokens, which are at `tokens`."""
        removed = s @ self.a[tokens][..., np.newaxis]  # [running, H, value, 1]
        columns = np.concatenate([removed, self.v[tokens][..., np.newaxis]], axis=-1)
        rows = np.stack([self.b[tokens], self.k[tokens]], axis=-2)
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
    gate_hidden: Array | None  # [T, R_g] after the sigmoid
    gate: Array | None  # [T, D]; None without an adapter for it
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
        has_gate = block.has("att.g1")
        kinds = "rwkvag" if has_gate else "rwkva"
        mixed = mix(x, delta, [block(f"att.x_{kind}") for kind in kinds])
        x_r, x_w, x_k, x_v, x_a = mixed[:5]

        r = block.matmul(x_r, "att.receptance.weight")
        k = block.matmul(x_k, "att.key.weight")
        v = block.matmul(x_v, "att.value.weight")
        decay_hidden = np.tanh(block.project(x_w, "att.w1"))
        decay_rate = sigmoid(block("att.w0") + block.project(decay_hidden, "att.w2"))
        a = sigmoid(block("att.a0") + block.project(block.project(x_a, "att.a1"), "att.a2"))
        gate_hidden = gate = None
        if has_gate:
            gate_hidden = sigmoid(block.project(mixed[5], "att.g1"))
            gate = block.project(gate_hidden, "att.g2")
        if v_first is None:
            v_rate, used_v = None, v
        else:
            v_rate = sigmoid(block("att.v0") + block.project(block.project(x_v, "att.v1"), "att.v2"))
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
        y, wkv = runs.recur(run_wkv, inputs, wkv)
        normed = group_norm(y, block, shape.group_norm_epsilon) if block.has("att.ln_x.weight") else y.copy()
        normed += bonus(inputs.r, inputs.k, inputs.v, block("att.r_k").reshape(heads[1:]))
        normed = normed.reshape(x.shape)
        out = block.matmul(normed if gate is None else normed * gate, "att.output.weight")
        return cls(k, v, v_rate, decay_hidden, decay_rate, a, gate_hidden, gate, inputs, y, normed, out, wkv)


def first_value(block: Block, x: Array, previous: Array) -> Array:
    """Return the first layer's value [T, D], which later layers use, from the input x [T, D] of its time mix."""
    return block.matmul(x + (previous - x) * block("att.x_v"), "att.value.weight")


def run_wkv(inputs: WkvInputs | BonusWkvInputs, wkv: Array, runs: PackedRuns) -> tuple[Array, Array]:
    """Run a recurrence, all runs in parallel; return y = S r [T, H, N] and the state S [B, H, value, key] after it."""
    y = np.empty_like(inputs.r)

    def step(s: Array, tokens: Index) -> None:
        inputs.advance(s, tokens)
        y[tokens] = (s @ inputs.r[tokens][..., np.newaxis])[..., 0]

    return y, runs.walk(wkv.astype(y.dtype, copy=False), step)


def channel_mix(block: Block, x: Array, previous: Array) -> Array:
    """Compute the channel mix of RWKV-7, token shift included: x, previous [T, D] -> [T, D]."""
    k = block.matmul(x + (previous - x) * block("ffn.x_k"), "ffn.key.weight")
    return block.matmul(np.square(np.maximum(k, 0)), "ffn.value.weight")


def normalize(x: Array) -> Array:
    """Scale x to Euclidean length 1 along its last axis."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    unit: Array = x / np.maximum(length, KEY_NORM_FLOOR)
    return unit


# The backward pass. Each function follows one of the forward pass. A gradient has the name of its variable after a d.


def run_backward(
    weights: Weights, inputs: Sequence[Array], dx: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> dict[str, Array]:
    """Run the layers of RWKV-7 backward; see `rnn_engine.reference.RunBackward`."""
    assert isinstance(weights.shape, ShapeV7)
    block = weights.block(0)
    x = layer_norm(inputs[0], block, "ln1")
    v_first = first_value(block, x, PackedRuns.of(lengths).shift(x, states["att_shift"][:, 0]))
    time_mix = _TimeMix(weights.shape, v_first)
    return run_blocks_backward(weights, inputs, dx, lengths, states, time_mix, channel_mix_backward)


class _TimeMix:
    """The time mix with its backward pass, for all layers from the last, adding up the first value's gradient."""

    def __init__(self, shape: ShapeV7, v_first: Array) -> None:
        self._shape = shape
        self._v_first = v_first  # [T, D]
        self._dv_first = np.zeros_like(v_first)

    def __call__(
        self, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
    ) -> tuple[Array, Pullback]:
        """Compute a layer's time mix; see `rnn_engine.versions.shared.reference.DifferentiableTimeMix`."""
        v_first = self._v_first if block.layer > 0 else None
        activations = Activations.compute(self._shape, block, x, previous, v_first, state["wkv"], runs)
        return activations.out, partial(self._backward, block, activations, previous - x, state["wkv"], runs)

    def _backward(
        self, block: Block, forward: Activations, delta: Array, wkv: Array, runs: PackedRuns, d_out: Array
    ) -> tuple[Array, Array, dict[str, Array]]:
        inputs, heads = forward.inputs, forward.y.shape
        assert forward.gate is not None
        assert forward.gate_hidden is not None  # ARWKV, which has none, is not trained
        d_gated = block.matmul_transposed(d_out, "att.output.weight")
        d_normed = (d_gated * forward.gate).reshape(heads)
        dy = group_norm_backward(d_normed, forward.y, block, self._shape.group_norm_epsilon)
        d_inputs, d_wkv = run_wkv_backward(dy, inputs, wkv, runs)
        add_bonus_backward(d_normed, inputs, block("att.r_k").reshape(heads[1:]), d_inputs)

        d_gate_hidden = (d_gated * forward.normed) @ block("att.g2").T
        d_mixed = {
            "r": block.matmul_transposed(d_inputs.r.reshape(d_out.shape), "att.receptance.weight"),
            "w": _decay_backward(d_inputs.decay, block, forward),
            "k": block.matmul_transposed(_key_backward(d_inputs, block, forward), "att.key.weight"),
            "v": self._value_backward(d_inputs.v.reshape(d_out.shape), block, forward),
            "a": _learning_rate_backward(d_inputs, block, forward),
            "g": sigmoid_backward(d_gate_hidden, forward.gate_hidden) @ block("att.g1").T,
        }
        return *vector_mixes_backward(d_mixed, block, "att.x_", delta), {"wkv": d_wkv}

    def _value_backward(self, dv: Array, block: Block, forward: Activations) -> Array:
        """Return the gradient of the value's mixed input from that of the value after the value residual, [T, D]."""
        if forward.v_rate is None:
            return block.matmul_transposed(dv + self._dv_first, "att.value.weight")
        self._dv_first += dv * forward.v_rate
        d_rate = sigmoid_backward(dv * (self._v_first - forward.v), forward.v_rate)
        block.learn("att.v0", d_rate)
        d_mixed: Array = d_rate @ block("att.v2").T @ block("att.v1").T
        return d_mixed + block.matmul_transposed(dv * (1 - forward.v_rate), "att.value.weight")


def _decay_backward(d_decay: Array, block: Block, forward: Activations) -> Array:
    """Return the gradient [T, D] of the decay's mixed input; decay = exp(DECAY_RATE * decay_rate)."""
    d_exponent = (d_decay * forward.inputs.decay).reshape(forward.decay_rate.shape)
    d_rate = sigmoid_backward(DECAY_RATE * d_exponent, forward.decay_rate)
    block.learn("att.w0", d_rate)
    d_mixed: Array = tanh_backward(d_rate @ block("att.w2").T, forward.decay_hidden) @ block("att.w1").T
    return d_mixed


def _key_backward(d_inputs: WkvInputs, block: Block, forward: Activations) -> Array:
    """Return the gradient [T, D] of the key matrix's output, which is a part of k, a and b of the recurrence."""
    k_k, a_heads = block("att.k_k"), forward.a.reshape(forward.y.shape)
    d_removal_key = d_inputs.b * a_heads - d_inputs.a
    d_scaled = normalize_backward(d_removal_key, (forward.k * k_k).reshape(forward.y.shape))
    dk: Array = d_inputs.k.reshape(forward.k.shape) * (1 + (forward.a - 1) * block("att.k_a"))
    dk += d_scaled.reshape(forward.k.shape) * k_k
    return dk


def _learning_rate_backward(d_inputs: WkvInputs, block: Block, forward: Activations) -> Array:
    """Return the gradient [T, D] of the mixed input of the in-context learning rate, a part of k and b."""
    d_rate = d_inputs.k.reshape(forward.k.shape) * forward.k * block("att.k_a")
    d_rate -= (d_inputs.b * forward.inputs.a).reshape(forward.k.shape)  # the removal key is -inputs.a
    d_rate = sigmoid_backward(d_rate, forward.a)
    block.learn("att.a0", d_rate)
    d_mixed: Array = d_rate @ block("att.a2").T @ block("att.a1").T
    return d_mixed


def run_wkv_backward(dy: Array, inputs: WkvInputs, wkv: Array, runs: PackedRuns) -> tuple[WkvInputs, Array]:
    """Run the wkv recurrence of RWKV-7 backward; return the gradients of its inputs, and of the state before the runs.

    dy: [T, H, N]. wkv: [B, H, value, key], the state before the runs.

    For each token, with dS the gradient of the state after it, S, and S' the state before it:

    dS += dy r^T; dr = S^T dy; dv = dS k; dk = dS^T v; db = dS^T S' a; d(S' a) = dS b
    d(decay) = sum over the values of dS * S'; da = S'^T d(S' a); dS' = dS diag(decay) + d(S' a) a^T
    """
    d_inputs = WkvInputs(*(np.empty_like(dy) for _ in range(6)))

    def backward(ds: Array, before: Array, after: Array, tokens: Array) -> None:  # each [running, H, value, key]
        d_inputs.r[tokens] = (dy[tokens][..., np.newaxis, :] @ after)[..., 0, :]
        ds += dy[tokens][..., np.newaxis] * inputs.r[tokens][..., np.newaxis, :]

        removed = before @ inputs.a[tokens][..., np.newaxis]  # [running, H, value, 1]
        d_removed = ds @ inputs.b[tokens][..., np.newaxis]
        d_inputs.v[tokens] = (ds @ inputs.k[tokens][..., np.newaxis])[..., 0]
        d_inputs.k[tokens] = (inputs.v[tokens][..., np.newaxis, :] @ ds)[..., 0, :]
        d_inputs.b[tokens] = (removed.swapaxes(-1, -2) @ ds)[..., 0, :]
        d_inputs.a[tokens] = (d_removed.swapaxes(-1, -2) @ before)[..., 0, :]
        d_inputs.decay[tokens] = (ds * before).sum(axis=-2)

        ds *= inputs.decay[tokens][..., np.newaxis, :]
        ds += d_removed * inputs.a[tokens][..., np.newaxis, :]

    return d_inputs, runs.walk_backward(wkv.astype(dy.dtype), inputs.advance, backward)


def channel_mix_backward(d_out: Array, block: Block, x: Array, previous: Array) -> tuple[Array, Array]:
    """Return the gradients of x and of previous from that of the channel mix of RWKV-7. All are [T, D]."""
    delta = previous - x
    k = block.matmul(x + delta * block("ffn.x_k"), "ffn.key.weight")
    hidden = np.square(np.maximum(k, 0))
    dk = squared_relu_backward(block.matmul_transposed(d_out, "ffn.value.weight", hidden), k)
    return vector_mixes_backward({"k": block.matmul_transposed(dk, "ffn.key.weight")}, block, "ffn.x_", delta)


def normalize_backward(d_unit: Array, x: Array) -> Array:
    """Return the gradient of x from that of u = x / |x|: (du - u sum(u du)) / |x|, with sums along the last axis."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    unit = x / np.maximum(length, KEY_NORM_FLOOR)
    along = np.where(length > KEY_NORM_FLOOR, np.sum(unit * d_unit, axis=-1, keepdims=True), 0)
    dx: Array = (d_unit - unit * along) / np.maximum(length, KEY_NORM_FLOOR)
    return dx
