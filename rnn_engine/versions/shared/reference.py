"""Parts of the numpy forward and backward passes that several versions share, in f32 or f64.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np

from rnn_engine.reference import Array, Block, Index, PackedRuns, Weights, embed, layer_norm, norm, sigmoid, standardize
from rnn_engine.reference.backward import layer_norm_backward, sigmoid_backward, standardize_backward
from rnn_engine.versions.shared.layout import HeadsShape

TimeMix: TypeAlias = Callable[[Block, Array, Array, Mapping[str, Array], PackedRuns], tuple[Array, Mapping[str, Array]]]
"""(block, x [T, D], previous [T, D], the layer's state [B, ...] a field, runs) -> (out [T, D], the new state)."""

ChannelMix: TypeAlias = Callable[[Block, Array, Array], Array]
"""(block, x [T, D], previous [T, D]) -> [T, D]."""


def run_blocks(
    weights: Weights,
    ids: Array,
    lengths: Sequence[int] | PackedRuns,
    states: Mapping[str, Array],
    time_mix: TimeMix,
    channel_mix: ChannelMix,
) -> tuple[Array, dict[str, list[Array]]]:
    """Run B sequences through all layers of a model in numpy, with a version's `time_mix` and `channel_mix`.

    For the arguments and the result see `rnn_engine.reference.RunLayers`. Without the field `ffn_shift`, the channel
    mix has no token shift.
    """
    kind = weights.shape.norm
    x = embed(weights, ids)
    runs = PackedRuns.of(lengths)
    after: dict[str, list[Array]] = {name: [] for name in states}
    for layer in range(weights.shape.num_layers):
        block = weights.block(layer)
        before = {name: values[:, layer] for name, values in states.items()}

        mixed = norm(x, block, "ln1", kind)
        out, state = time_mix(block, mixed, runs.shift(mixed, before["att_shift"]), before, runs)
        after["att_shift"].append(runs.last(mixed))
        for name, values in state.items():
            after[name].append(values)
        x = x + out

        mixed = norm(x, block, "ln2", kind)
        if "ffn_shift" in before:
            x = x + channel_mix(block, mixed, runs.shift(mixed, before["ffn_shift"]))
            after["ffn_shift"].append(runs.last(mixed))
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

    def advance(self, s: Array, tokens: Index) -> None:
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
        y, wkv = runs.recur(run_bonus_wkv, inputs, wkv)
        y = bonus(r, k, v, u) + y
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


def run_bonus_wkv(inputs: BonusWkvInputs, wkv: Array, runs: PackedRuns) -> tuple[Array, Array]:
    """Run the wkv recurrence of RWKV-5 and RWKV-6 token by token, all runs in parallel. Return (y, new `wkv`).

    y = S r, to which the `bonus` is added; S <- S diag(decay) + v k^T

    y: [T, H, N]. wkv: [B, H, value, key] is S: before the runs as an argument, after them in the result.
    """
    y = np.empty_like(inputs.r)

    def step(s: Array, tokens: Index) -> None:
        y[tokens] = (s @ inputs.r[tokens][..., np.newaxis])[..., 0]
        inputs.advance(s, tokens)

    return y, runs.walk(wkv.astype(y.dtype, copy=False), step)


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


# The backward pass.


Pullback: TypeAlias = Callable[[Array], tuple[Array, Array, Mapping[str, Array]]]
"""The backward pass of a time mix: gradient of its result [T, D] -> those of x, of previous, and of the layer's state.

The state's gradient lacks the token shift, which `run_blocks_backward` adds.
"""

DifferentiableTimeMix: TypeAlias = Callable[
    [Block, Array, Array, Mapping[str, Array], PackedRuns], tuple[Array, Pullback]
]
"""(block, x [T, D], previous [T, D], the layer's state [B, ...] a field, runs) -> (out [T, D], its backward pass)."""

ChannelMixBackward: TypeAlias = Callable[[Array, Block, Array, Array], tuple[Array, Array]]
"""(gradient of the result [T, D], block, x [T, D], previous [T, D]) -> gradients of x and of previous [T, D]."""


def run_blocks_backward(
    weights: Weights,
    inputs: Sequence[Array],
    dx: Array,
    lengths: Sequence[int],
    states: Mapping[str, Array],
    time_mix: DifferentiableTimeMix,
    channel_mix_backward: ChannelMixBackward,
) -> dict[str, Array]:
    """Run all layers backward in numpy, each once more from its input; see `rnn_engine.reference.RunBackward`."""
    runs = PackedRuns.of(lengths)
    gradients = {name: np.empty(values.shape, weights.dtype) for name, values in states.items()}
    for layer in reversed(range(weights.shape.num_layers)):
        block = weights.block(layer)
        before = {name: values[:, layer] for name, values in states.items()}

        x = inputs[layer]
        mixed = layer_norm(x, block, "ln1")
        out, time_mix_backward = time_mix(block, mixed, runs.shift(mixed, before["att_shift"]), before, runs)
        middle = x + out

        mixed = layer_norm(middle, block, "ln2")
        d_mixed, d_previous = channel_mix_backward(dx, block, mixed, runs.shift(mixed, before["ffn_shift"]))
        d_shifted, gradients["ffn_shift"][:, layer] = runs.shift_backward(d_previous)
        dx = dx + layer_norm_backward(d_mixed + d_shifted, middle, block, "ln2")

        d_mixed, d_previous, d_state = time_mix_backward(dx)
        d_shifted, gradients["att_shift"][:, layer] = runs.shift_backward(d_previous)
        dx = dx + layer_norm_backward(d_mixed + d_shifted, x, block, "ln1")
        for name, values in d_state.items():
            gradients[name][:, layer] = values
    return gradients


def bonus_time_mix_backward(
    d_out: Array, block: Block, shape: HeadsShape, forward: BonusTimeMix, wkv: Array, runs: PackedRuns
) -> tuple[dict[str, Array], Array, Array]:
    """Run a time mix of RWKV-5 or RWKV-6 backward, from its result [T, D] to its shifted inputs.

    wkv: [B, H, value, key], the state before the runs.
    Return the gradients of the shifted inputs of r, k, v and g [T, D], of the decay [T, H, N], and of `wkv`.
    """
    d_projected = {}
    d_gated = block.matmul_transposed(d_out, "att.output.weight")
    if forward.gate is not None:
        d_projected["g"] = silu_backward(d_gated * forward.normed, forward.gate)
        d_gated = d_gated * silu(forward.gate)
    dy = group_norm_backward(d_gated.reshape(forward.y.shape), forward.y, block, shape.group_norm_epsilon)
    d_inputs, d_wkv = run_bonus_wkv_backward(dy, forward.inputs, forward.u, wkv, runs)
    for kind, d in ("r", d_inputs.r), ("k", d_inputs.k), ("v", d_inputs.v):
        d_projected[kind] = d.reshape(d_out.shape)
    d_mixed = {kind: block.matmul_transposed(d, BONUS_MATRICES[kind]) for kind, d in d_projected.items()}
    return d_mixed, d_inputs.decay, d_wkv


def run_bonus_wkv_backward(
    dy: Array, inputs: BonusWkvInputs, u: Array, wkv: Array, runs: PackedRuns
) -> tuple[BonusWkvInputs, Array]:
    """Run the wkv recurrence of RWKV-5 and RWKV-6 backward; return the gradients of its inputs and of `wkv`.

    dy: [T, H, N]; u: [H, N]. wkv: [B, H, value, key], the state before the runs.

    For each token, with dS the gradient of the state after it, and S' the state before it, and without the bonus:

    dr = S'^T dy; dv = dS k; dk = dS^T v; d(decay) = sum over the values of dS * S'; dS' = dS diag(decay) + dy r^T
    """
    d_inputs = BonusWkvInputs(*(np.empty_like(dy) for _ in range(4)))

    def backward(ds: Array, before: Array, _after: Array, tokens: Array) -> None:  # each [running, H, value, key]
        d_inputs.r[tokens] = (dy[tokens][..., np.newaxis, :] @ before)[..., 0, :]
        d_inputs.v[tokens] = (ds @ inputs.k[tokens][..., np.newaxis])[..., 0]
        d_inputs.k[tokens] = (inputs.v[tokens][..., np.newaxis, :] @ ds)[..., 0, :]
        d_inputs.decay[tokens] = (ds * before).sum(axis=-2)
        ds *= inputs.decay[tokens][..., np.newaxis, :]
        ds += dy[tokens][..., np.newaxis] * inputs.r[tokens][..., np.newaxis, :]

    d_wkv = runs.walk_backward(wkv.astype(dy.dtype), inputs.advance, backward)
    add_bonus_backward(dy, inputs, u, d_inputs)
    return d_inputs, d_wkv


class BonusVectors(Protocol):
    """The vectors [T, H, N] from which a bonus is computed, or their gradients."""

    @property
    def r(self) -> Array: ...
    @property
    def k(self) -> Array: ...
    @property
    def v(self) -> Array: ...


def add_bonus_backward(d_bonus: Array, inputs: BonusVectors, u: Array, d_inputs: BonusVectors) -> None:
    """Add to the gradients `d_inputs` those that come from the bonus. d_bonus: [T, H, N]; u: [H, N]."""
    d_weighed = np.sum(d_bonus * inputs.v, axis=-1, keepdims=True) * u
    d_inputs.r[:] += d_weighed * inputs.k
    d_inputs.k[:] += d_weighed * inputs.r
    d_inputs.v[:] += np.sum(inputs.r * inputs.k * u, axis=-1, keepdims=True) * d_bonus


def channel_mix_with_receptance_backward(
    d_out: Array, block: Block, mixed_k: Array, mixed_r: Array
) -> tuple[Array, Array]:
    """Return the gradients of the shifted inputs of key and receptance of a gated channel mix. All are [T, D]."""
    k = block.matmul(mixed_k, "ffn.key.weight")
    receptance = sigmoid(block.matmul(mixed_r, "ffn.receptance.weight"))
    value = block.matmul(np.square(np.maximum(k, 0)), "ffn.value.weight")
    dk = squared_relu_backward(block.matmul_transposed(d_out * receptance, "ffn.value.weight"), k)
    d_receptance = sigmoid_backward(d_out * value, receptance)
    return (
        block.matmul_transposed(dk, "ffn.key.weight"),
        block.matmul_transposed(d_receptance, "ffn.receptance.weight"),
    )


def channel_mix_with_static_mixes_backward(
    d_out: Array, block: Block, x: Array, previous: Array
) -> tuple[Array, Array]:
    """Return the gradients of x and of previous from that of the channel mix of RWKV-5. All are [T, D]."""
    mixed = (static_mix(block, f"ffn.time_mix_{kind}", x, previous) for kind in "kr")
    dk, dr = channel_mix_with_receptance_backward(d_out, block, *mixed)
    return static_mixes_backward(block, "ffn", {"k": dk, "r": dr})


def static_mixes_backward(block: Block, part: str, d_mixed: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the gradients of x and of previous [T, D] from those of static mixes of att or ffn, by letter."""
    mixes = {kind: block(f"{part}.time_mix_{kind}") for kind in d_mixed}
    return mixes_backward(d_mixed, {kind: 1 - mix for kind, mix in mixes.items()})


def vector_mixes_backward(d_mixed: Mapping[str, Array], block: Block, prefix: str, delta: Array) -> tuple[Array, Array]:
    """Return what `mixes_backward` does for vectors called `prefix` and their letter, which learn; delta [T, D]."""
    for kind, d in d_mixed.items():
        block.learn(f"{prefix}{kind}", d, delta)
    return mixes_backward(d_mixed, {kind: block(f"{prefix}{kind}") for kind in d_mixed})


def mixes_backward(d_mixed: Mapping[str, Array], mixes: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the gradients of x and previous [T, D] from those of x + (previous - x) * mix, by letter."""
    dx, d_previous = (np.zeros_like(next(iter(d_mixed.values()))) for _ in range(2))
    for kind, d in d_mixed.items():
        dx += d * (1 - mixes[kind])
        d_previous += d * mixes[kind]
    return dx, d_previous


def group_norm_backward(dy: Array, y: Array, block: Block, epsilon: float) -> Array:
    """Return the gradient [T, H, N] of `y`, the recurrence's output, from that of its group norm, [T, H, N]."""
    return standardize_backward(dy * block("att.ln_x.weight").reshape(y.shape[1:]), y, epsilon)


def squared_relu_backward(dy: Array, x: Array) -> Array:
    """Return the gradient of x from that of y = max(x, 0)^2."""
    dx: Array = 2 * dy * np.maximum(x, 0)
    return dx


def silu_backward(dy: Array, x: Array) -> Array:
    """Return the gradient of x from that of y = x sigmoid(x)."""
    gate = sigmoid(x)
    dx: Array = dy * gate * (1 + x * (1 - gate))
    return dx


def double_exp_decay_backward(d_decay: Array, w: Array) -> Array:
    """Return the gradient of w from that of exp(-exp(w))."""
    dw: Array = -d_decay * double_exp_decay(w) * np.exp(np.minimum(w, 80))  # e^80 is finite in f32
    return dw
