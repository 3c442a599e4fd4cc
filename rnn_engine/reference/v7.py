"""RWKV-7 in numpy, in f32 or f64.

Several sequences run side by side: their tokens are packed on one axis T, and everything but the wkv recurrence
is computed for all of them at once. Knows arrays only; slots, batches and candidates are the runner's.

Shapes: T tokens of all runs, B runs, L layers, D width, H heads, N head size (H * N = D), F ffn width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rnn_engine.checks import check_token_ids
from rnn_engine.errors import InvalidRequestError
from rnn_engine.reference.weights import Array, Block, Lookup, Weights
from rnn_engine.types import Model

LAYER_NORM_EPS = 1e-5
GROUP_NORM_EPS = 64e-5
KEY_NORM_FLOOR = 1e-12
DECAY_RATE = -0.606531  # -exp(-1/2) to the digits that models are trained with


def forward(
    model: Model,
    tokens: Sequence[int],
    state: Mapping[str, Array] | None = None,
    dtype: DTypeLike = np.float32,
) -> tuple[Array, dict[str, Array]]:
    """Logits [T, V] after every token of one sequence, and the state after the last.

    `state` is the one before the first token, None for the initial one; it is not changed.
    Raises InvalidRequestError for no tokens or for a token outside the vocabulary.
    """
    ids = _check_tokens(tokens, model.shape.vocab_size)
    weights = Weights(model.shape, model.tensor, dtype)
    before = model.shape.initial_state() if state is None else state
    states = {field.name: before[field.name][np.newaxis] for field in model.shape.state_fields}
    hidden, after = run_layers(weights, ids, [len(ids)], states)
    return project_to_logits(weights, hidden), {name: values[0] for name, values in after.items()}


def run_layers(
    weights: Weights, ids: NDArray[np.integer[Any]], lengths: Sequence[int], states: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Run B sequences, `lengths[b]` tokens of each, packed one after the other in `ids` [T].

    `states` holds [B, L, ...] a field and is not changed. Returns the last layer's output [T, D] and the new states.
    """
    runs = PackedRuns.of(lengths)
    after = {name: np.empty(values.shape, weights.dtype) for name, values in states.items()}
    x = layer_norm(weights.rows("emb.weight", ids), weights.block(0), "ln0")
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


def project_to_logits(weights: Weights, hidden: Array) -> Array:
    """[R, D] outputs of the last layer -> [R, V]."""
    normed = layer_norm(hidden, weights, "ln_out")
    return weights.matmul(normed, "head.weight")


@dataclass(frozen=True, slots=True)
class PackedRuns:
    """Where each of B runs lies on the token axis."""

    lengths: NDArray[np.intp]  # [B], none is 0
    starts: NDArray[np.intp]  # [B]

    @classmethod
    def of(cls, lengths: Sequence[int]) -> PackedRuns:
        counts = np.asarray(lengths, np.intp)
        return cls(counts, np.cumsum(counts) - counts)

    def shift(self, x: Array, before: Array) -> Array:
        """The vector before each of x [T, D]: a run's first token has the one in `before` [B, D]."""
        previous = np.empty_like(x)
        previous[1:] = x[:-1]
        previous[self.starts] = before
        return previous

    def last(self, x: Array) -> Array:
        """The last vector of each run [B, D], which the run's next token will be shifted against."""
        last: Array = x[self.starts + self.lengths - 1]
        return last


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
    decay = np.exp(DECAY_RATE * sigmoid(w)).reshape(heads)
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


def layer_norm(x: Array, lookup: Lookup, name: str) -> Array:
    return _standardize(x, LAYER_NORM_EPS) * lookup(f"{name}.weight") + lookup(f"{name}.bias")


def group_norm(y: Array, block: Block) -> Array:
    """y: [T, H, N], each head on its own."""
    weight, bias = (block(f"att.ln_x.{part}").reshape(y.shape[1:]) for part in ("weight", "bias"))
    return _standardize(y, GROUP_NORM_EPS) * weight + bias


def _standardize(x: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    standard: Array = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps)
    return standard


def normalize(x: Array) -> Array:
    """To length 1 along the last axis."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    unit: Array = x / np.maximum(length, KEY_NORM_FLOOR)
    return unit


def sigmoid(x: Array) -> Array:
    probability: Array = 1 / (1 + np.exp(np.minimum(-x, 80)))  # e^80 is finite in f32, and its inverse as good as 0
    return probability


def _check_tokens(tokens: Sequence[int], vocab_size: int) -> NDArray[np.integer[Any]]:
    if len(tokens) == 0:
        raise InvalidRequestError("tokens", list(tokens), "at least one token")
    check_token_ids("token", tokens, vocab_size)
    return np.asarray(tokens, np.intp)
