"""RWKV-7 in numpy, in f32 or f64.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rnn_engine.reference.functions import layer_norm, sigmoid, standardize
from rnn_engine.reference.runs import PackedRuns
from rnn_engine.reference.weights import Array, Block, Weights

_GROUP_NORM_EPSILON: Final = 64e-5
_KEY_NORM_FLOOR: Final = 1e-12
_DECAY_RATE: Final = -0.606531  # -exp(-1/2) to the digits that models are trained with


def run_layers(
    weights: Weights, x: Array, lengths: Sequence[int], states: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Run B sequences through all layers; see `rnn_engine.reference.runs.RunLayers`."""
    runs = PackedRuns.of(lengths)
    after = {name: np.empty(values.shape, weights.dtype) for name, values in states.items()}
    v_first = None
    for layer in range(weights.shape.num_layers):
        block = weights.block(layer)

        mixed = layer_norm(x, block, "ln1")
        previous = runs.shift(mixed, states["att_shift"][:, layer])
        after["att_shift"][:, layer] = runs.last(mixed)
        out, after["wkv"][:, layer], v_first = time_mix(block, mixed, previous, states["wkv"][:, layer], v_first, runs)
        x = x + out

        mixed = layer_norm(x, block, "ln2")
        previous = runs.shift(mixed, states["ffn_shift"][:, layer])
        after["ffn_shift"][:, layer] = runs.last(mixed)
        x = x + channel_mix(block, mixed, previous)
    return x, after


def time_mix(
    block: Block, x: Array, previous: Array, wkv: Array, v_first: Array | None, runs: PackedRuns
) -> tuple[Array, Array, Array]:
    """x, previous: [T, D]; wkv: [B, H, N, N]; v_first: [T, D], None in layer 0. Returns out, the new wkv, v_first."""
    num_heads, head_size = wkv.shape[1:3]
    heads = (len(x), num_heads, head_size)

    delta = previous - x
    x_r, x_w, x_k, x_v, x_a, x_g = (x + delta * block(f"att.x_{kind}") for kind in "rwkvag")

    r = block.matmul(x_r, "att.receptance.weight").reshape(heads)
    k = block.matmul(x_k, "att.key.weight")
    v = block.matmul(x_v, "att.value.weight")
    if v_first is None:
        v_first = v
    else:
        v = v + (v_first - v) * sigmoid(block("att.v0") + x_v @ block("att.v1") @ block("att.v2"))
    w = block("att.w0") + np.tanh(x_w @ block("att.w1")) @ block("att.w2")
    decay = np.exp(_DECAY_RATE * sigmoid(w)).reshape(heads)
    a = sigmoid(block("att.a0") + x_a @ block("att.a1") @ block("att.a2"))  # in-context learning rate
    g = sigmoid(x_g @ block("att.g1")) @ block("att.g2")

    removal_key = normalize((k * block("att.k_k")).reshape(heads))
    k = (k * (1 + (a - 1) * block("att.k_a"))).reshape(heads)
    v_heads = v.reshape(heads)
    y, wkv = run_wkv(r, decay, k, v_heads, -removal_key, removal_key * a.reshape(heads), wkv, runs)

    y = group_norm(y, block)
    bonus = np.sum(r * k * block("att.r_k").reshape(heads[1:]), axis=-1, keepdims=True) * v_heads
    out = block.matmul((y + bonus).reshape(x.shape) * g, "att.output.weight")
    return out, wkv, v_first


def run_wkv(
    r: Array, decay: Array, k: Array, v: Array, a: Array, b: Array, wkv: Array, runs: PackedRuns
) -> tuple[Array, Array]:
    """S <- S diag(decay) + (S a) b^T + v k^T; y = S r, token after token, for all runs side by side.

    r, decay, k, v, a, b, y: [T, H, N]; wkv: [B, H, value, key] is S before the runs, and after them in the result.
    """
    longest_first = np.argsort(-runs.lengths, kind="stable")
    lengths, starts = runs.lengths[longest_first], runs.starts[longest_first]
    live = wkv[longest_first].astype(r.dtype, copy=False)
    y = np.empty_like(r)
    r, v, a, decay = r[..., np.newaxis], v[..., np.newaxis], a[..., np.newaxis], decay[..., np.newaxis, :]
    rows = np.stack([b, k], axis=-2)  # [T, H, 2, key]
    for step in range(lengths[0]):
        running = np.count_nonzero(lengths > step)
        tokens = starts[:running] + step
        s = live[:running]  # [running, H, value, key], a view
        columns = np.concatenate([s @ a[tokens], v[tokens]], axis=-1)  # [running, H, value, 2]
        s *= decay[tokens]
        s += columns @ rows[tokens]
        y[tokens] = (s @ r[tokens])[..., 0]
    after = np.empty_like(live)
    after[longest_first] = live
    return y, after


def channel_mix(block: Block, x: Array, previous: Array) -> Array:
    """x, previous: [T, D] -> [T, D]."""
    k = block.matmul(x + (previous - x) * block("ffn.x_k"), "ffn.key.weight")
    return block.matmul(np.square(np.maximum(k, 0)), "ffn.value.weight")


def group_norm(y: Array, block: Block) -> Array:
    """Normalise each head of y [T, H, N] on its own."""
    weight, bias = (block(f"att.ln_x.{part}").reshape(y.shape[1:]) for part in ("weight", "bias"))
    return standardize(y, _GROUP_NORM_EPSILON) * weight + bias


def normalize(x: Array) -> Array:
    """Scale x to length 1 along its last axis."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    unit: Array = x / np.maximum(length, _KEY_NORM_FLOOR)
    return unit
