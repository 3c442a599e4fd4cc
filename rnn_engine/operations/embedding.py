"""Embed texts: run them side by side and take each one's vector from the state after its last token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from rnn_engine.errors import InvalidRequestError, StepError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.cost import Cost
from rnn_engine.operations.parallel import ParallelRequests
from rnn_engine.operations.state_vector import EmbeddingSettings, finish_vector, part_vector
from rnn_engine.requests import Finished, GenerateRequest, Started
from rnn_engine.types import F32, InitialState, State


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """One input as a vector."""

    vector: F32  # [dimensions]
    cost: Cost


@dataclass(frozen=True, slots=True, eq=False)
class InputState:
    """The state after one input's last token."""

    state: State
    cost: Cost


async def embed(
    engine: EngineLike,
    inputs: Sequence[Sequence[int]],
    settings: EmbeddingSettings,
    *,
    initial_state: InitialState | None = None,
    centre: F32 | None = None,
    wait_for_room: bool = False,
) -> list[Embedding]:
    """Return the vectors of lists of token ids, in their order; none depends on what else is embedded.

    `initial_state` is the state that every input begins from; `centre`, from `find_centre` with the same settings, is
    subtracted from every vector. Raises InvalidRequestError before anything runs, and OverloadedError if the queue is
    full then, unless `wait_for_room` is set.
    """
    shape = engine.info.shape
    settings.check(shape)

    def vector_of(state: State) -> F32:
        part = part_vector(state, settings, shape)
        return finish_vector(part if centre is None else part - centre, settings)

    embeddings: dict[int, Embedding] = {}
    ends = run_states(engine, inputs, initial_state=initial_state, wait_for_room=wait_for_room)
    async with aclosing(ends):
        async for number, end in ends:
            embeddings[number] = Embedding(await asyncio.to_thread(vector_of, end.state), end.cost)
    return [embeddings[number] for number in range(len(inputs))]


async def find_centre(
    engine: EngineLike,
    inputs: Sequence[Sequence[int]],
    settings: EmbeddingSettings,
    *,
    initial_state: InitialState | None = None,
) -> tuple[F32, list[Cost]]:
    """Return the mean of the vectors of `inputs` before projection and scaling, [size] f32, and what each cost."""
    shape = engine.info.shape
    settings.check(shape)
    total = np.zeros(settings.size(shape))  # [size] f64, so that the order in which they come does not show
    costs: dict[int, Cost] = {}
    async with aclosing(run_states(engine, inputs, initial_state=initial_state)) as ends:
        async for number, end in ends:
            total += await asyncio.to_thread(part_vector, end.state, settings, shape)
            costs[number] = end.cost
    return (total / len(inputs)).astype(np.float32), [costs[number] for number in range(len(inputs))]


async def run_states(
    engine: EngineLike,
    inputs: Sequence[Sequence[int]],
    *,
    initial_state: InitialState | None = None,
    wait_for_room: bool = False,
) -> AsyncGenerator[tuple[int, InputState], None]:
    """Yield (number of the input, its state) as they come. Raises InvalidRequestError before anything runs.

    `wait_for_room` is as in `ParallelRequests`.
    """
    calls = [
        GenerateRequest(prompt=tokens, initial_state=initial_state, max_tokens=0, keep_end=True) for tokens in inputs
    ]
    _check(engine, calls)
    costs: dict[int, Cost] = {}
    limit = engine.info.num_slots
    async with ParallelRequests(engine, calls, limit, wait_for_room=wait_for_room) as running:
        async for events in running:
            for number, event in events:
                if isinstance(event, Started):
                    costs[number] = Cost(event.prompt_tokens, event.cached_tokens)
                elif isinstance(event, Finished):
                    assert event.end is not None  # it was asked for
                    yield number, InputState(_finite(event.end.state), costs[number])


def _check(engine: EngineLike, calls: Sequence[GenerateRequest]) -> None:
    if not calls:
        raise InvalidRequestError("input", [], "at least one text or list of token ids")
    for number, call in enumerate(calls):
        try:
            call.check(engine.info.shape, engine.info.max_logprobs, engine.info.num_slots)
        except InvalidRequestError as error:
            field = error.field.removeprefix("prompt")
            raise InvalidRequestError(f"input {number}{field}", error.value, error.allowed) from None


def _finite(state: State) -> State:
    if not all(np.isfinite(array).all() for array in state.values()):
        raise StepError("the state after an input holds numbers that are not finite")
    return state
