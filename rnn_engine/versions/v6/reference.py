"""The forward and backward passes of RWKV-6 in numpy, in f32 or f64.

Shapes: T tokens of all runs, D width, H heads, N head size (H * N = D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights
from rnn_engine.reference.backward import tanh_backward
from rnn_engine.versions.shared.reference import (
    BonusTimeMix,
    Pullback,
    bonus_time_mix_backward,
    channel_mix_with_receptance,
    channel_mix_with_receptance_backward,
    double_exp_decay,
    double_exp_decay_backward,
    mixes_backward,
    run_blocks,
    run_blocks_backward,
    vector_mixes_backward,
)
from rnn_engine.versions.v6.layout import NUM_MIXES, ShapeV6

MIX_KINDS: Final = "wkvrg"  # the order in which the adapter of the mixes returns them


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int] | PackedRuns, states: Mapping[str, Array]
) -> tuple[Array, dict[str, list[Array]]]:
    """Run B sequences through all layers of RWKV-6; see `rnn_engine.reference.RunLayers`."""
    assert isinstance(weights.shape, ShapeV6)
    return run_blocks(weights, ids, lengths, states, partial(time_mix, weights.shape), channel_mix)


def time_mix(
    shape: ShapeV6, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
) -> tuple[Array, dict[str, Array]]:
    """Compute the time mix of RWKV-6; see `rnn_engine.versions.shared.reference.TimeMix`."""
    activations = Activations.compute(shape, block, x, previous, state["wkv"], runs).time_mix
    return activations.out, {"wkv": activations.wkv}


@dataclass(frozen=True, slots=True)
class ShiftedInputs:
    """The inputs of the matrices of a time mix of RWKV-6, from the token shift and its adapters, and the decay."""

    delta: Array  # [T, D] the previous vector minus the token's own
    mix_hidden: Array  # [T, 5, R_mix] after tanh
    mixes: dict[str, Array]  # letter of a shifted input -> [T, D], how much of delta it has
    mixed: dict[str, Array]  # letter of a matrix -> [T, D] its input
    decay_hidden: Array  # [T, R_decay] after tanh
    decay_input: Array  # [T, D], w of decay = exp(-exp(w))

    @classmethod
    def compute(cls, block: Block, x: Array, previous: Array) -> ShiftedInputs:
        """Shift the input x [T, D] of a layer's time mix."""
        delta = previous - x
        hidden = np.tanh(block.project(x + delta * block("att.time_maa_x"), "att.time_maa_w1"))
        mix_hidden = hidden.reshape(len(x), NUM_MIXES, -1)
        added = block.project(np.swapaxes(mix_hidden, 0, 1), "att.time_maa_w2")  # [5, T, D]
        mixes = {kind: block(f"att.time_maa_{kind}") + z for kind, z in zip(MIX_KINDS, added, strict=True)}
        mixed = {kind: x + delta * mix for kind, mix in mixes.items()}
        decay_hidden = np.tanh(block.project(mixed.pop("w"), "att.time_decay_w1"))
        w = block("att.time_decay").reshape(-1) + block.project(decay_hidden, "att.time_decay_w2")
        return cls(delta, mix_hidden, mixes, mixed, decay_hidden, w)


@dataclass(frozen=True, slots=True)
class Activations:
    """What a layer's time mix computes for T tokens, for its result and for its backward pass."""

    shifted: ShiftedInputs
    time_mix: BonusTimeMix

    @classmethod
    def compute(
        cls, shape: ShapeV6, block: Block, x: Array, previous: Array, wkv: Array, runs: PackedRuns
    ) -> Activations:
        """Run the time mix of RWKV-6 on x [T, D]. wkv: [B, H, value, key] before the runs."""
        shifted = ShiftedInputs.compute(block, x, previous)
        decay = double_exp_decay(shifted.decay_input).reshape(len(x), shape.num_heads, shape.head_size)
        time_mix = BonusTimeMix.compute(block, shape, shifted.mixed, decay, block("att.time_faaaa"), wkv, runs)
        return cls(shifted, time_mix)


def channel_mix(block: Block, x: Array, previous: Array) -> Array:
    """Compute the channel mix of RWKV-6, token shift included: x, previous [T, D] -> [T, D]."""
    return channel_mix_with_receptance(block, *channel_mix_inputs(block, x, previous))


def channel_mix_inputs(block: Block, x: Array, previous: Array) -> tuple[Array, Array]:
    """Return the shifted inputs [T, D] of key and receptance."""
    delta = previous - x
    return x + delta * block("ffn.time_maa_k"), x + delta * block("ffn.time_maa_r")


# The backward pass. Each function follows one of the forward pass. A gradient has the name of its variable after a d.


def run_backward(
    weights: Weights, inputs: Sequence[Array], dx: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> dict[str, Array]:
    """Run the layers of RWKV-6 backward; see `rnn_engine.reference.RunBackward`."""
    assert isinstance(weights.shape, ShapeV6)
    time_mix = partial(_time_mix, weights.shape)
    return run_blocks_backward(weights, inputs, dx, lengths, states, time_mix, channel_mix_backward)


def _time_mix(
    shape: ShapeV6, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
) -> tuple[Array, Pullback]:
    """Compute a layer's time mix; see `rnn_engine.versions.shared.reference.DifferentiableTimeMix`."""
    activations = Activations.compute(shape, block, x, previous, state["wkv"], runs)
    return activations.time_mix.out, partial(_time_mix_backward, shape, block, activations, state["wkv"], runs)


def _time_mix_backward(
    shape: ShapeV6, block: Block, forward: Activations, wkv: Array, runs: PackedRuns, d_out: Array
) -> tuple[Array, Array, dict[str, Array]]:
    shifted = forward.shifted
    d_mixed, d_decay, d_wkv = bonus_time_mix_backward(d_out, block, shape, forward.time_mix, wkv, runs)
    d_input = double_exp_decay_backward(d_decay.reshape(d_out.shape), shifted.decay_input)
    block.learn("att.time_decay", d_input)
    d_hidden = tanh_backward(d_input @ block("att.time_decay_w2").T, shifted.decay_hidden)
    d_mixed["w"] = d_hidden @ block("att.time_decay_w1").T

    dx, d_previous = mixes_backward(d_mixed, shifted.mixes)
    d_mixes = np.stack([d_mixed[kind] * shifted.delta for kind in MIX_KINDS])  # [5, T, D]
    for kind, d in zip(MIX_KINDS, d_mixes, strict=True):
        block.learn(f"att.time_maa_{kind}", d)
    d_hidden = np.swapaxes(d_mixes @ np.swapaxes(block("att.time_maa_w2"), -1, -2), 0, 1)  # [T, 5, R_mix]
    d_hidden = tanh_backward(d_hidden, shifted.mix_hidden).reshape(len(d_out), -1)
    d_mixed_x = {"x": d_hidden @ block("att.time_maa_w1").T}
    dx_more, d_previous_more = vector_mixes_backward(d_mixed_x, block, "att.time_maa_", shifted.delta)
    return dx + dx_more, d_previous + d_previous_more, {"wkv": d_wkv}


def channel_mix_backward(d_out: Array, block: Block, x: Array, previous: Array) -> tuple[Array, Array]:
    """Return the gradients of x and of previous from that of the channel mix of RWKV-6. All are [T, D]."""
    dk, dr = channel_mix_with_receptance_backward(d_out, block, *channel_mix_inputs(block, x, previous))
    return vector_mixes_backward({"k": dk, "r": dr}, block, "ffn.time_maa_", previous - x)
