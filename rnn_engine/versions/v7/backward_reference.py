"""The backward pass of RWKV-7 in numpy, in f32 or f64.

Each function follows one of the forward pass (`reference.py`). A gradient has the name of its variable after a d.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights, layer_norm
from rnn_engine.reference.backward import sigmoid_backward, tanh_backward
from rnn_engine.versions.shared.backward_reference import (
    Pullback,
    add_bonus_backward,
    group_norm_backward,
    mixes_backward,
    run_blocks_backward,
    squared_relu_backward,
)
from rnn_engine.versions.v7.layout import ShapeV7
from rnn_engine.versions.v7.reference import DECAY_RATE, KEY_NORM_FLOOR, Activations, WkvInputs, first_value


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
        """Compute a layer's time mix; see `rnn_engine.versions.shared.backward_reference.DifferentiableTimeMix`."""
        v_first = self._v_first if block.layer > 0 else None
        activations = Activations.compute(self._shape, block, x, previous, v_first, state["wkv"], runs)
        return activations.out, partial(self._backward, block, activations, state["wkv"], runs)

    def _backward(
        self, block: Block, forward: Activations, wkv: Array, runs: PackedRuns, d_out: Array
    ) -> tuple[Array, Array, dict[str, Array]]:
        inputs, heads = forward.inputs, forward.y.shape
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
        dx, d_previous = mixes_backward(d_mixed, {kind: block(f"att.x_{kind}") for kind in d_mixed})
        return dx, d_previous, {"wkv": d_wkv}

    def _value_backward(self, dv: Array, block: Block, forward: Activations) -> Array:
        """Return the gradient of the value's mixed input from that of the value after the value residual, [T, D]."""
        if forward.v_rate is None:
            return block.matmul_transposed(dv + self._dv_first, "att.value.weight")
        self._dv_first += dv * forward.v_rate
        d_rate = sigmoid_backward(dv * (self._v_first - forward.v), forward.v_rate)
        d_mixed: Array = d_rate @ block("att.v2").T @ block("att.v1").T
        return d_mixed + block.matmul_transposed(dv * (1 - forward.v_rate), "att.value.weight")


def _decay_backward(d_decay: Array, block: Block, forward: Activations) -> Array:
    """Return the gradient [T, D] of the decay's mixed input; decay = exp(DECAY_RATE * decay_rate)."""
    d_exponent = (d_decay * forward.inputs.decay).reshape(forward.decay_rate.shape)
    d_hidden = sigmoid_backward(DECAY_RATE * d_exponent, forward.decay_rate) @ block("att.w2").T
    d_mixed: Array = tanh_backward(d_hidden, forward.decay_hidden) @ block("att.w1").T
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
    d_mixed: Array = sigmoid_backward(d_rate, forward.a) @ block("att.a2").T @ block("att.a1").T
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
    mix = block("ffn.x_k")
    k = block.matmul(x + (previous - x) * mix, "ffn.key.weight")
    dk = squared_relu_backward(block.matmul_transposed(d_out, "ffn.value.weight"), k)
    return mixes_backward({"k": block.matmul_transposed(dk, "ffn.key.weight")}, {"k": mix})


def normalize_backward(d_unit: Array, x: Array) -> Array:
    """Return the gradient of x from that of u = x / |x|: (du - u sum(u du)) / |x|, with sums along the last axis."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    unit = x / np.maximum(length, KEY_NORM_FLOOR)
    along = np.where(length > KEY_NORM_FLOOR, np.sum(unit * d_unit, axis=-1, keepdims=True), 0)
    dx: Array = (d_unit - unit * along) / np.maximum(length, KEY_NORM_FLOOR)
    return dx
