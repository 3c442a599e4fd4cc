"""Embed texts: run each through the model, and turn what it gives at the end into a vector.

A model made for embedding has vectors of its own, made of its rows at the ends of sentences. The vectors of any other
model are parts of the recurrent state after the last token.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, StepError, check_choice
from rnn_engine.interface import EngineLike
from rnn_engine.operations.parallel import Cost, run_each
from rnn_engine.requests import GenerateRequest
from rnn_engine.types import F32, EmbeddingTask, FieldKind, InitialState, ModelShape, State, StateField

# Turn a state into one vector: choose its layers and parts, pool its matrices, and bound the vector's length.
#
# The same state and settings give the same vector on every machine and at every time, so vectors can be stored and
# compared later.

T = TypeVar("T")
Layers: TypeAlias = int | Sequence[int] | Literal["all", "mean"]
Pooling: TypeAlias = Literal["key_norms", "value_norms", "key_means", "value_means", "none"]

ALL_PARTS = "all"
"""The value of `part` that selects all fields (recurrent tensors) of a state."""

DEFAULT_TASK: EmbeddingTask = "retrieval"
MAX_ENDS = 64  # ends of sentences in one input
MAX_DIMENSIONS = 8192
MAX_LAYERS = 1024  # in a list, which may name a layer twice
MAX_NUMBERS = 1 << 23  # before projection
_VALUE_AXIS, _KEY_AXIS = -2, -1  # of a matrix field [H, value, key]
_SIGNS_EACH = 4  # of the projected numbers, to which each number is added
_BLOCK = 1 << 16  # numbers projected at a time
_SMALL_STATE = 1 << 17  # bytes; a large model's state has megabytes
_U64 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """The settings that choose the numbers of a recurrent state that make up an embedding, and scale them.

    A model made for embedding has a vector of its own for each `task`; `layer`, `part` and `pooling` don't apply to it.
    From each selected layer, `part` selects a field of the state. A field is a vector [D], or a matrix for each head.
    With pooling, the matrices become one number for each key or value of each head [D]; without, all their numbers are
    used [D * N]. The part "all" joins all fields in the state's order, with pooling, each scaled to length 1 so that
    none dominates. Several layers are joined one after the other; "mean" is the mean over all layers. If `dimensions`
    is smaller than the joined vector, it is projected by fixed random signs, which roughly preserves the angles between
    vectors.
    """

    layer: Layers = "mean"  # an index, from the end if negative; several; all joined; or the mean of all
    part: str | None = None  # the name of a field, or ALL_PARTS; None = the matrices if there are any, else all
    pooling: Pooling = "key_norms"  # of a matrix field
    dimensions: int | None = None  # None = as many as the part has
    normalize: bool = True  # scale the vector to length 1
    task: EmbeddingTask | None = None  # of a model made for embedding; None = retrieval

    def check(self, shape: ModelShape) -> None:
        """Raise InvalidRequestError for the first setting that is not allowed for a model with the sizes `shape`."""
        if shape.has_head:
            self._check_part(shape)
        else:
            self._check_task(shape)
        size = self.size(shape)
        longest = min(size, MAX_DIMENSIONS)
        given = f"layer, part and pooling give {size} numbers" if shape.has_head else f"the model gives {size} numbers"
        if self.dimensions is not None and not 1 <= self.dimensions <= longest:
            raise InvalidRequestError("dimensions", self.dimensions, f"a number from 1 to {longest}; {given}")
        if self.dimensions is None and size > MAX_DIMENSIONS:
            raise InvalidRequestError("dimensions", None, f"a number from 1 to {longest}, since {given}")

    def _check_part(self, shape: ModelShape) -> None:
        if self.task is not None:
            raise InvalidRequestError("task", self.task, "null, since the model was not made for embedding")
        if self.part is not None:
            check_choice("part", self.part, [*(field.name for field in shape.state_fields), ALL_PARTS])
        check_choice("pooling", self.pooling, get_args(Pooling))
        self.layers(shape)
        size = self.size(shape)
        if size > MAX_NUMBERS:
            raise InvalidRequestError(
                "layer", self.layer, f"layers that give at most {MAX_NUMBERS} numbers, not {size}"
            )

    def _check_task(self, shape: ModelShape) -> None:
        """Check the settings for a model that has vectors of its own."""
        if self.task is not None:
            check_choice("task", self.task, get_args(EmbeddingTask))
        for name in ("layer", "part", "pooling"):
            value = getattr(self, name)
            if value != getattr(_DEFAULT, name):
                allowed = f"no value, since the model ({shape.version}) has vectors of its own"
                raise InvalidRequestError(name, value, allowed)

    def layers(self, shape: ModelShape) -> tuple[int, ...]:
        """Return the layers that make the embedding, from 0. Raises InvalidRequestError for one beyond the model."""
        every = range(shape.num_layers)
        if self.layer in ("all", "mean"):
            return tuple(every)
        chosen = [self.layer] if isinstance(self.layer, int) else self.layer
        if not isinstance(chosen, str) and len(chosen) > MAX_LAYERS:
            raise InvalidRequestError("layer", self.layer, f"at most {MAX_LAYERS} layers, not {len(chosen)}")
        if isinstance(chosen, str) or not chosen or not all(-len(every) <= layer < len(every) for layer in chosen):
            raise InvalidRequestError(
                "layer", self.layer, f"'all', 'mean', or one or more layers from {-len(every)} to {len(every) - 1}"
            )
        return tuple(every[layer] for layer in chosen)

    def fields(self, shape: ModelShape) -> tuple[StateField, ...]:
        """Return the fields (recurrent tensors) of a layer's state that become the embedding, selected by `part`."""
        every = shape.state_fields
        if self.part == ALL_PARTS:
            return every
        if self.part is None:
            return tuple(field for field in every if field.kind is FieldKind.MATRIX) or every
        return tuple(field for field in every if field.name == self.part)

    def size(self, shape: ModelShape) -> int:
        """Return the length of the embedding before any projection to fewer numbers."""
        if not shape.has_head:
            return shape.width
        part = sum(_pooled_size(field, self.pooling) for field in self.fields(shape))
        return part * (1 if self.layer == "mean" else len(self.layers(shape)))


_DEFAULT = EmbeddingSettings()


def part_vector(state: State, settings: EmbeddingSettings, shape: ModelShape) -> F32:
    """Return the numbers [size] f32 of a state that checked `settings` choose, neither projected nor scaled."""
    fields = settings.fields(shape)
    layers = []
    for layer in settings.layers(shape):
        pooled = [_pool(field, state[field.name][layer], settings.pooling) for field in fields]
        layers.append(pooled[0] if len(pooled) == 1 else np.concatenate([_unit(numbers) for numbers in pooled]))
    rows: F32 = np.stack(layers)  # [layers, n]
    return np.asarray(rows.mean(axis=0), np.float32) if settings.layer == "mean" else rows.reshape(-1)


def finish_vector(vector: F32, settings: EmbeddingSettings) -> F32:
    """Project a vector of `part_vector` to the `dimensions` of `settings`, and scale it to length 1 unless it is 0."""
    if settings.dimensions is not None and settings.dimensions < len(vector):
        vector = _project(vector, settings.dimensions)
    return _unit(vector) if settings.normalize else vector


def _unit(vector: F32) -> F32:
    length = np.linalg.norm(vector)
    return vector if length == 0.0 else np.asarray(vector / length, np.float32)


def _pooled_size(field: StateField, pooling: Pooling) -> int:
    """Return the length of the vector that `_pool` makes of one layer of a state's `field`."""
    if field.kind is not FieldKind.MATRIX or pooling == "none":
        return prod(field.shape)
    num_heads, num_values, num_keys = field.shape
    return num_heads * (num_keys if pooling in ("key_norms", "key_means") else num_values)


def _pool(field: StateField, values: F32, pooling: Pooling) -> F32:
    """Return a state's field of one layer as a vector; matrices are pooled over their values or keys. -> [n] f32"""
    pooled: F32 = values
    if field.kind is FieldKind.MATRIX:
        match pooling:
            case "key_norms":
                pooled = np.linalg.norm(values, axis=_VALUE_AXIS)
            case "value_norms":
                pooled = np.linalg.norm(values, axis=_KEY_AXIS)
            case "key_means":
                pooled = values.mean(axis=_VALUE_AXIS)
            case "value_means":
                pooled = values.mean(axis=_KEY_AXIS)
            case "none":
                pass
    return np.asarray(pooled, np.float32).reshape(-1)


def _project(vector: F32, dimensions: int) -> F32:
    """Add each number of `vector`, with fixed random signs, at four of fewer places. -> [dimensions] f32"""
    total = np.zeros(dimensions)
    for start in range(0, len(vector), _BLOCK):
        numbers = vector[start : start + _BLOCK].astype(np.float64)
        index = np.arange(start, start + len(numbers), dtype=np.uint64)
        for copy in range(_SIGNS_EACH):
            bits = _scramble(index * np.uint64(_SIGNS_EACH) + np.uint64(copy))
            places = ((bits >> np.uint64(1)) % np.uint64(dimensions)).astype(np.int64)
            signed = np.where(bits & np.uint64(1), numbers, -numbers)
            total += np.bincount(places, weights=signed, minlength=dimensions)
    projected: F32 = (total / np.sqrt(_SIGNS_EACH)).astype(np.float32)
    return projected


def _scramble(numbers: _U64) -> _U64:
    """Return SplitMix64's numbers at the positions `numbers`, which, unlike numpy's, are the same in every version."""
    bits = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """The embedding vector of one text, and the number of prompt tokens that it took."""

    vector: F32  # [dimensions]
    cost: Cost


@dataclass(frozen=True, slots=True, eq=False)
class InputState:
    """The recurrent state after one text's last token, and the number of prompt tokens that it took."""

    state: State
    cost: Cost


async def embed(
    engine: EngineLike,
    inputs: Sequence[Sequence[int]],
    settings: EmbeddingSettings,
    *,
    initial_state: InitialState | None = None,
    wait_for_room: bool = False,
) -> list[Embedding]:
    """Return the embeddings of `inputs`, each a list of token ids, in their order.

    A model made for embedding gives its own vectors; of any other model, they are parts of the state after an input.
    The embedding of an input does not depend on the other inputs. Every input begins from `initial_state`. Raises
    InvalidRequestError before anything runs, and OverloadedError if the queue is full then, unless `wait_for_room` is
    set.
    """
    shape = engine.info.shape
    settings.check(shape)
    found: dict[int, Embedding] = {}
    if not shape.has_head:
        async with aclosing(_run_features(engine, inputs, initial_state, wait_for_room=wait_for_room)) as features:
            async for number, each in features:
                [vector] = await engine.apply_head(each.vector[np.newaxis], settings.task or DEFAULT_TASK)
                found[number] = Embedding(await asyncio.to_thread(finish_vector, vector, settings), each.cost)
    else:

        def vector_of(state: State) -> F32:
            return finish_vector(part_vector(state, settings, shape), settings)

        states = run_states(engine, inputs, initial_state=initial_state, wait_for_room=wait_for_room)
        async with aclosing(states) as ends:
            async for number, end in ends:
                found[number] = Embedding(await _on_thread(end.state, vector_of), end.cost)
    return [found[number] for number in range(len(inputs))]


async def _on_thread(state: State, function: Callable[[State], T]) -> T:
    """Return what `function` makes of a state: on a thread, unless the state is so small that a thread takes longer."""
    is_small = sum(array.nbytes for array in state.values()) <= _SMALL_STATE
    return function(state) if is_small else await asyncio.to_thread(function, state)


async def _run_features(
    engine: EngineLike, inputs: Sequence[Sequence[int]], initial_state: InitialState | None, *, wait_for_room: bool
) -> AsyncGenerator[tuple[int, Embedding], None]:
    """Run `inputs` of a model made for embedding; yield the index and the feature [D] of each as soon as it has run.

    A feature is the mean of the rows at all ends of sentences of an input. The input up to each of them is a request of
    its own, which goes on from the one before if the cache keeps states.
    """

    def make() -> tuple[list[GenerateRequest], list[int]]:
        calls, owners = [], []
        for number, tokens in enumerate(inputs):
            for beginning in _closed_beginnings(f"input {number}", tokens, end_of_sentence(engine.info.shape)):
                calls.append(GenerateRequest(beginning, initial_state=initial_state, max_tokens=0, keep_row=True))
                owners.append(number)
        _check(engine, calls, owners)
        return calls, owners

    calls, owners = await asyncio.to_thread(make)
    lasts = {number: call for call, number in enumerate(owners)}  # the call for the whole input
    counts = Counter(owners)
    rows: dict[int, list[F32]] = {number: [] for number in lasts}
    costs: dict[int, Cost] = {}
    async with aclosing(run_each(engine, calls, wait_for_room=wait_for_room)) as ended:
        async for call, each in ended:
            number = owners[call]
            costs[call] = each.cost
            assert each.finished.row is not None  # it was requested
            rows[number].append(each.finished.row)
            if len(rows[number]) == counts[number]:
                yield number, Embedding(np.mean(rows.pop(number), axis=0), costs[lasts[number]])


def end_of_sentence(shape: ModelShape) -> int:
    """Return the token that ends every text of a model made for embedding: the last of its vocabulary."""
    return shape.vocab_size - 1


def _closed_beginnings(name: str, tokens: Sequence[int], end: int) -> Iterator[tuple[int, ...]]:
    """Yield an input's beginnings that end with `end`, which is added at last. Raises InvalidRequestError."""
    if len(tokens) == 0:
        raise InvalidRequestError(name, [], "at least one token")
    closed = tuple(tokens) if tokens[-1] == end else (*tokens, end)
    places = [place for place, token in enumerate(closed, 1) if token == end]
    if len(places) > MAX_ENDS:
        raise InvalidRequestError(name, f"{len(places)} of token {end}", f"at most {MAX_ENDS} of it")
    return (closed[:place] for place in places)


async def run_states(
    engine: EngineLike,
    inputs: Sequence[Sequence[int]],
    *,
    initial_state: InitialState | None = None,
    wait_for_room: bool = False,
) -> AsyncGenerator[tuple[int, InputState], None]:
    """Run `inputs`, lists of token ids, in parallel; yield each one's index and the state after it as soon as it ends.

    Raises InvalidRequestError before anything runs. `wait_for_room` is as in `ParallelRequests`.
    """

    def make() -> list[GenerateRequest]:
        calls = [GenerateRequest(each, initial_state=initial_state, max_tokens=0, keep_end=True) for each in inputs]
        _check(engine, calls, range(len(calls)))
        return calls

    calls = await asyncio.to_thread(make)
    async with aclosing(end_states(engine, calls, wait_for_room=wait_for_room)) as ends:
        async for number, end in ends:
            yield number, end


async def end_states(
    engine: EngineLike, calls: Sequence[GenerateRequest], *, wait_for_room: bool = False
) -> AsyncGenerator[tuple[int, InputState], None]:
    """Run requests in parallel; yield index and last state as each ends. Raises StepError for one not finite."""
    async with aclosing(run_each(engine, calls, wait_for_room=wait_for_room)) as ended:
        async for number, each in ended:
            assert each.finished.end is not None  # it was requested
            state = each.finished.end.state
            if not await _on_thread(state, lambda state: all(np.isfinite(array).all() for array in state.values())):
                raise StepError("the state after an input holds numbers that are not finite")
            yield number, InputState(state, each.cost)


def _check(engine: EngineLike, calls: Sequence[GenerateRequest], inputs: Sequence[int]) -> None:
    """Raise InvalidRequestError for the first call that is not allowed; `inputs` has the number of each one's input."""
    if not calls:
        raise InvalidRequestError("input", [], "at least one text or list of token ids")
    for number, call in zip(inputs, calls, strict=True):
        try:
            call.check(engine.info.shape, engine.info.max_logprobs, engine.info.num_slots)
        except InvalidRequestError as error:
            field = error.field.removeprefix("prompt")
            raise InvalidRequestError(f"input {number}{field}", error.value, error.allowed) from None
