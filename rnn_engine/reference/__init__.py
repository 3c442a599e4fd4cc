"""Parts of the forward passes in numpy that all RWKV versions share: weights, embedding, head, norms and packed runs.

These passes run on the device "cpu", and the tests compare other devices with them. The tests compare the passes
themselves with the golden files in tests/golden, which BlinkDL's `rwkv` package computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, Self, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rnn_engine.quantised import Blocks
from rnn_engine.quantised.rows import read_rows
from rnn_engine.types import LAYER_NORM, LoraPairs, Model, ModelShape, Norm

Array: TypeAlias = NDArray[Any]
Replaced = TypeVar("Replaced", bound=Callable[..., Any])
Lookup: TypeAlias = Callable[[str], Array]


Watch: TypeAlias = Callable[[int, Array], None]
"""Called after a layer with its number and its output x [T, D], the residual stream, which it must not change."""


def ignore_layer(_layer: int, _x: Array) -> None:
    """Default of `Weights.watch`; ignores its arguments."""


_ROWS: Final = 32  # of a matrix, transposed at once


class Weights:
    """A model's tensors in numpy, cast to `dtype` at first use. Matrices are [in, out], a third faster for few rows."""

    def __init__(
        self, shape: ModelShape, fetch: Callable[[str], Array | Blocks], dtype: DTypeLike = np.float32
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._fetch = fetch
        self._cast: dict[str, Array] = {}
        self._transposed: dict[str, Array] = {}
        self.watch: Watch = ignore_layer
        self.carried: Sequence[Array] = ()
        self.kept: list[Array] | None = None
        self.loras: Sequence[tuple[slice, LoraPairs]] = ()  # and the tokens for which each is used

    @classmethod
    def read(cls, model: Model, dtype: DTypeLike = np.float32) -> Self:
        """Read all tensors of a model, which may then be closed; matrices stay in the blocks of its file."""
        tensors: dict[str, Array | Blocks] = {}
        for name in model.names:
            tensor = read_rows(model.matrix(name))
            tensors[name] = tensor if isinstance(tensor, Blocks) else np.ascontiguousarray(tensor)
        return cls(model.shape, tensors.__getitem__, dtype)

    def __call__(self, name: str) -> Array:
        if name not in self._cast:
            self._cast[name] = _numbers(self._fetch(name)).astype(self.dtype, copy=False)
        return self._cast[name]

    def has(self, name: str) -> bool:
        """Return True if the model has the tensor called `name`, a vector or a small matrix, which is then cached."""
        try:
            self(name)
        except KeyError:
            return False
        return True

    def matmul(self, x: Array, name: str) -> Array:
        """Multiply `x` [T, in] with the matrix called `name` [out, in] -> [T, out]."""
        y: Array = x @ self._matrix(name)
        for tokens, lora in self.loras:
            if name in lora.pairs:
                down, up = lora.pairs[name]
                y[tokens] += x[tokens] @ down.T @ up.T
        return y

    def project(self, x: Array, name: str) -> Array:
        """Multiply `x` [T, in] with the low-rank matrix called `name` [in, out] -> [T, out]; or B of each, if 3-D."""
        return x @ self(name)

    def matmul_transposed(self, dy: Array, name: str, x: Array | None = None) -> Array:  # noqa: ARG002
        """Multiply `dy` [T, out] with the transpose of the matrix called `name` [out, in] -> [T, in].

        `x` [T, in] is what the matrix is multiplied with on the way forward, if the backward pass does not do so again.
        """
        return dy @ self._matrix(name).T

    def learn(self, name: str, gradients: Array, factors: Array | None = None) -> None:
        """Take the gradients [T, D] of the vector called `name` for each token; only a trainer's weights keep them.

        With `factors` [T, D], they are the products of both, which other weights do not compute.
        """

    def _matrix(self, name: str) -> Array:
        """Return the matrix called `name` as [in, out]."""
        if name not in self._transposed:
            self._transposed[name] = _transpose(self._fetch(name), self.dtype)
        return self._transposed[name]

    def rows(self, name: str, ids: NDArray[np.integer[Any]]) -> Array:
        """Return the rows `ids` of the table (such as the embedding) called `name`, cast to `dtype`."""
        found: Array = _numbers(self._fetch(name)[ids])
        return found.astype(self.dtype)

    def watched(self, watch: Watch) -> Self:
        """Return a copy of these weights with which a forward pass calls `watch` after each layer."""
        watching = copy(self)
        watching.watch = watch
        return watching

    def with_loras(self, loras: Sequence[tuple[slice, LoraPairs]]) -> Self:
        """Return a copy of these weights with which the given tokens of a step use LoRAs."""
        changed = copy(self)
        changed.loras = loras
        return changed

    def carrying(self, carried: Sequence[Array]) -> Self:
        """Return a copy of these weights, of a part of a model, with what the part before it puts out.

        `carried` are the residual stream x and what earlier layers keep for later ones, [T, D] each; nothing for the
        first part. Its pass adds what its layers keep to `kept`.
        """
        part = copy(self)
        part.carried, part.kept = carried, []
        return part

    def keep(self, rows: Array) -> None:
        """Keep `rows` [T, D], which later layers read besides x, for the next part of the model."""
        if self.kept is not None:
            self.kept.append(rows)

    def block(self, layer: int) -> Block:
        return Block(self, layer)


def _numbers(tensor: Array | Blocks) -> Array:
    return tensor.numbers() if isinstance(tensor, Blocks) else tensor


def _transpose(matrix: Array | Blocks, dtype: np.dtype[Any]) -> Array:
    """Return a matrix [R, C] as an array [C, R], made of a few rows at a time, which a core's cache holds."""
    result = np.empty(matrix.shape[::-1], dtype)
    for start in range(0, len(matrix), _ROWS):
        rows = slice(start, start + _ROWS)
        result[:, rows] = _numbers(matrix[rows]).astype(dtype, copy=False).T
    return result


class Block:
    """The weights of one layer, by tensor names without the prefix `blocks.N.`."""

    def __init__(self, weights: Weights, layer: int) -> None:
        self.layer = layer
        self._weights = weights
        self._prefix = f"{weights.shape.tensor_names.layers}{layer}."

    def __call__(self, name: str) -> Array:
        return self._weights(self._prefix + name)

    def has(self, name: str) -> bool:
        return self._weights.has(self._prefix + name)

    def matmul(self, x: Array, name: str) -> Array:
        return self._weights.matmul(x, self._prefix + name)

    def project(self, x: Array, name: str) -> Array:
        return self._weights.project(x, self._prefix + name)

    def matmul_transposed(self, dy: Array, name: str, x: Array | None = None) -> Array:
        return self._weights.matmul_transposed(dy, self._prefix + name, x)

    def learn(self, name: str, gradients: Array, factors: Array | None = None) -> None:
        self._weights.learn(self._prefix + name, gradients, factors)

    def rows(self, name: str, ids: NDArray[np.integer[Any]]) -> Array:
        return self._weights.rows(self._prefix + name, ids)


def embed(weights: Weights, ids: NDArray[np.integer[Any]]) -> Array:
    """Return the first layer's input [T, D]: the embeddings of the token ids [T], normalised if the model does so.

    Of a part of a model, it is what the part before has put out.
    """
    if weights.carried:
        return weights.carried[0]
    names = weights.shape.tensor_names
    rows = weights.rows(names.embedding, ids)
    return rows if names.embedding_norm is None else norm(rows, weights, names.embedding_norm, weights.shape.norm)


def project_to_logits(weights: Weights, x: Array) -> Array:
    """Return the logits [R, V] for the output x [R, D] of the last layer; without a head, the normed output [R, D]."""
    names = weights.shape.tensor_names
    normed = norm(x, weights, names.head_norm, weights.shape.norm)
    return weights.matmul(normed, names.head) if weights.shape.has_head else normed


def norm(x: Array, lookup: Lookup, name: str, kind: Norm) -> Array:
    """Apply a norm of this kind to each vector of x [T, D], with the weight and any bias of the norm called `name`."""
    if kind.centres:
        return standardize(x, kind.epsilon) * lookup(f"{name}.weight") + lookup(f"{name}.bias")
    scaled: Array = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + kind.epsilon)
    return scaled * lookup(f"{name}.weight")


def layer_norm(x: Array, lookup: Lookup, name: str) -> Array:
    """Apply layer norm to each vector of x [T, D]; see `norm`."""
    return norm(x, lookup, name, LAYER_NORM)


def replaceable(function: Replaced) -> Replaced:
    """Let an array that is not numpy's compute `function` by its own method of that name."""

    @wraps(function)
    def call(x: Any, *args: Any) -> Any:  # noqa: ANN401
        return getattr(type(x), function.__name__, function)(x, *args)

    return cast("Replaced", call)


@replaceable
def standardize(x: Array, epsilon: float) -> Array:
    """Shift and scale x to mean 0 and variance 1 along its last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    standard: Array = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    return standard


@replaceable
def mix(x: Array, delta: Array, mixes: Sequence[Array]) -> Sequence[Array]:
    """Return x + delta * m for each vector m of `mixes`."""
    return [x + delta * each for each in mixes]


@replaceable
def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    probability: Array = 1 / (1 + np.exp(np.minimum(-x, 80)))  # e^80 is finite in f32, and its inverse as good as 0
    return probability


RunLayers: TypeAlias = Callable[
    [Weights, Array, "Sequence[int] | PackedRuns", Mapping[str, Array]], tuple[Array, dict[str, list[Array]]]
]
"""A function that runs the layers of an RWKV version in numpy: (weights, ids, lengths, states) -> (x, new states).

x [T, D] is the last layer's output, before the head. New states are L arrays [B, ...] a field.

B sequences run, `lengths[b]` tokens of each, one after the other in the token ids [T]. `states` holds [B, L, ...] a
field and is not changed.
"""

Recurrence: TypeAlias = Callable[..., tuple[Array, ...]]
"""A function (inputs, *states, runs) -> (output, *new states) of a layer.

inputs: a dataclass of arrays [T, ...]; the output is like the first of them. states: [B, ...] each, not changed.
"""

RunBackward: TypeAlias = Callable[
    [Weights, Sequence[Array], Array, Sequence[int], Mapping[str, Array]], dict[str, Array]
]
"""A function that runs the layers of an RWKV version backward in numpy.

(weights, inputs, dx, lengths, states) -> gradients of the states

inputs: L arrays [T, D], the residual stream at each layer's input, of a forward pass with these lengths and states.
dx [T, D] is the gradient of a loss with respect to the last layer's output. The result holds the loss's gradient with
respect to `states`, [B, L, ...] a field. The states after the runs have no part in the loss.
"""


Index: TypeAlias = slice | NDArray[np.intp]
"""Indices of tokens; a slice if they are side by side, which numpy reads faster."""

Step: TypeAlias = Callable[[Array, Index], None]
"""Changes the states [running, ...] of the runs that still have a token, given the places of these tokens."""

StepBackward: TypeAlias = Callable[[Array, Array, Array, NDArray[np.intp]], None]
"""Turns the gradient of the states after a token into that of the states before it, in place.

(gradient, states before, states after, places of the tokens), with the arrays [running, ...] as `Step` has them.
"""

_KEPT_EVERY: Final = 16  # tokens


@dataclass(frozen=True, slots=True)
class PackedRuns:
    """The positions of B token runs, one for each sequence, that are packed one after another along the axis [T]."""

    lengths: NDArray[np.intp]  # [B], none is 0
    starts: NDArray[np.intp]  # [B]
    steps: Sequence[tuple[int, Index]] = ()  # how many runs still have a token, the longest ones, and its places
    in_place: bool = False  # True = a recurrence may write to the states that it is given

    @classmethod
    def of(cls, lengths: Sequence[int] | PackedRuns, *, in_place: bool = False) -> PackedRuns:
        """Return the positions of token runs with these lengths, packed without gaps."""
        if isinstance(lengths, PackedRuns):
            return lengths
        counts = np.asarray(lengths, np.intp)
        runs = cls(counts, np.cumsum(counts) - counts)
        _, longest, starts = runs._longest_first()
        steps: list[tuple[int, Index]] = []
        for offset in range(longest[0]):
            running, first = int(np.count_nonzero(longest > offset)), int(starts[0]) + offset
            side_by_side = running == 1 or longest[0] == 1
            steps.append((running, slice(first, first + running) if side_by_side else starts[:running] + offset))
        return replace(runs, steps=steps, in_place=in_place)

    def shift(self, x: Array, before: Array) -> Array:
        """Return the vector before each of `x` [T, D]; for a run's first that of `before` [B, D]."""
        previous = np.empty_like(x)
        previous[1:] = x[:-1]
        previous[self.starts] = before
        return previous

    def shift_backward(self, d_previous: Array) -> tuple[Array, Array]:
        """Return the gradients of `x` [T, D] and `before` [B, D] from that of what `shift` returns, [T, D]."""
        dx = np.zeros_like(d_previous)
        dx[:-1] = d_previous[1:]
        dx[self.starts[1:] - 1] = 0  # the last token of a run precedes none
        return dx, d_previous[self.starts]

    def last(self, x: Array) -> Array:
        """Return the rows of `x` that belong to the last token of each of the B token runs: [B, D]."""
        last: Array = x[self.starts + self.lengths - 1]
        return last

    def recur(self, recurrence: Recurrence, inputs: object, *states: Array) -> tuple[Array, ...]:
        """Run a layer's recurrence on the runs, and return its results."""
        return recurrence(inputs, *states, self)

    def walk(self, state: Array, step: Step) -> Array:
        """Apply a recurrence to `state` [B, ...] token by token, all B runs in parallel; return the final states."""
        are_equal = self.steps[-1][0] == len(state)
        order = np.arange(len(state)) if are_equal else self._longest_first()[0]
        live = state if are_equal and self.in_place else state[order]
        for running, tokens in self.steps:
            step(live[:running], tokens)
        if are_equal:
            return live
        after = state if self.in_place else np.empty_like(live)
        after[order] = live
        return after

    def walk_backward(self, state: Array, step: Step, backward: StepBackward) -> Array:
        """Return the gradient [B, ...] of `state`, the one before the runs, if the states after them have none.

        The states that `backward` needs are computed once more: one in `_KEPT_EVERY` is kept on the way forward, and
        those that follow it are computed again when the way back reaches them.
        """
        order, lengths, starts = self._longest_first()
        live = state[order]
        kept = []
        for offset in range(lengths[0]):
            if offset % _KEPT_EVERY == 0:
                kept.append(live.copy())
            running = np.count_nonzero(lengths > offset)
            step(live[:running], starts[:running] + offset)
        gradient = np.zeros_like(live)
        for first, state_before in zip(range(0, lengths[0], _KEPT_EVERY)[::-1], kept[::-1], strict=True):
            offsets = range(first, min(first + _KEPT_EVERY, lengths[0]))
            states = [state_before]
            for offset in offsets:
                running = np.count_nonzero(lengths > offset)
                states.append(states[-1].copy())
                step(states[-1][:running], starts[:running] + offset)
            for offset in offsets[::-1]:
                running = np.count_nonzero(lengths > offset)
                before, after = (states[offset - first + side][:running] for side in (0, 1))
                backward(gradient[:running], before, after, starts[:running] + offset)
        unsorted = np.empty_like(gradient)
        unsorted[order] = gradient
        return unsorted

    def _longest_first(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Return the numbers of the runs from the longest to the shortest, and their lengths and starts. Each [B]."""
        order = np.argsort(-self.lengths, kind="stable")
        return order, self.lengths[order], self.starts[order]
