"""The forward passes of QRWKV6 and ARWKV in numpy, in f32 or f64.

Shapes: T tokens of all runs, D width, H heads, N head size (H * N = D), K width of all keys of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights, sigmoid
from rnn_engine.versions.qwen2.layout import ShapeV6Qwen2, ShapeV7Qwen2
from rnn_engine.versions.shared.reference import BonusWkvInputs, double_exp_decay, run_blocks, silu
from rnn_engine.versions.v6.reference import ShiftedInputs
from rnn_engine.versions.v7.reference import TimeMix, run_wkv


def run_layers_v6(
    weights: Weights, ids: Array, lengths: Sequence[int] | PackedRuns, states: Mapping[str, Array]
) -> tuple[Array, dict[str, list[Array]]]:
    """Run B sequences through all layers of a QRWKV6; see `rnn_engine.reference.RunLayers`."""
    assert isinstance(weights.shape, ShapeV6Qwen2)
    return run_blocks(weights, ids, lengths, states, partial(_time_mix, weights.shape), _channel_mix)


def run_layers_v7(
    weights: Weights, ids: Array, lengths: Sequence[int] | PackedRuns, states: Mapping[str, Array]
) -> tuple[Array, dict[str, list[Array]]]:
    """Run B sequences through all layers of an ARWKV; see `rnn_engine.reference.RunLayers`."""
    assert isinstance(weights.shape, ShapeV7Qwen2)
    return run_blocks(weights, ids, lengths, states, TimeMix(weights), _channel_mix)


def _time_mix(
    shape: ShapeV6Qwen2, block: Block, x: Array, previous: Array, state: Mapping[str, Array], runs: PackedRuns
) -> tuple[Array, dict[str, Array]]:
    """Compute the time mix of a QRWKV6; see `rnn_engine.versions.shared.reference.TimeMix`.

    S <- S diag(decay) + v ((1 - decay) * k)^T; y = S r / sqrt(N), without bonus and group norm.
    """
    shifted = ShiftedInputs.compute(block, x, previous)
    decay = double_exp_decay(shifted.decay_input).reshape(len(x), shape.num_heads, shape.head_size)
    r, k, v = (_project(block, name, shifted.mixed[name[0]], shape) for name in ("receptance", "key", "value"))
    k, v = (np.repeat(each, shape.heads_a_kv_head, axis=1) for each in (k, v))
    inputs = BonusWkvInputs(r / np.sqrt(x.dtype.type(shape.head_size)), decay, k * (1 - decay), v)
    y, wkv = runs.recur(run_wkv, inputs, state["wkv"])
    gate = sigmoid(block.matmul(shifted.mixed["g"], "att.gate.weight"))
    return block.matmul(y.reshape(x.shape) * gate, "att.output.weight"), {"wkv": wkv}


def _project(block: Block, name: str, x: Array, shape: ShapeV6Qwen2) -> Array:
    """Return the heads [T, H or fewer, N] of r, k or v for their shifted input x [T, D]."""
    projected = block.matmul(x, f"att.{name}.weight")
    if block.has(f"att.{name}.bias"):
        projected += block(f"att.{name}.bias")
    return projected.reshape(len(x), -1, shape.head_size)


def _channel_mix(block: Block, x: Array, _previous: Array) -> Array:
    """Compute the channel mix of a Qwen2 (SwiGLU), without a token shift: x [T, D] -> [T, D]."""
    gated = silu(block.matmul(x, "ffn.gate.weight")) * block.matmul(x, "ffn.up.weight")
    return block.matmul(gated, "ffn.down.weight")
