"""Create and advance named states (recurrent states under names) by running the model, and compare two states."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rnn_engine.interface import EngineLike
from rnn_engine.operations.parallel import Cost, run_each
from rnn_engine.requests import EndState, GenerateRequest
from rnn_engine.types import FieldKind, ModelShape, State
from rnn_engine_states.frozen import NO_INITIAL_STATE, FrozenState, TokenPath, freeze_state
from rnn_engine_states.named.entry import NamedState, Retention, check_changeable
from rnn_engine_states.tokens import pack


async def create_state(
    engine: EngineLike,
    name: str,
    tokens: Sequence[int],
    retention: Retention,
    *,
    initial_state: FrozenState | None = None,
    with_tokens: bool = False,
) -> tuple[NamedState, Cost]:
    """Run tokens from a recurrent state, store the state after them under `name`, and return it and the token counts.

    Without tokens, `initial_state` itself is stored, or an empty state if it is None. `with_tokens` stores the tokens
    with the state. Raises as `StateStore.put` does, in most cases before any token runs.
    """
    await check_room(engine, name, retention)
    if tokens:
        frozen, cost = await run_tokens(engine, initial_state, tokens)
        if with_tokens:
            root = NO_INITIAL_STATE if initial_state is None else initial_state.digest
            frozen = replace(frozen, path=TokenPath(root, pack(tokens)))
    else:
        shape = engine.info.shape
        frozen, cost = initial_state or freeze_state(shape.initial_state(), shape, "an empty state"), Cost(0, 0)
    return await engine.states.put(name, frozen, retention, source="prompt"), cost


async def advance_state(engine: EngineLike, name_or_id: str, tokens: Sequence[int]) -> tuple[NamedState, Cost]:
    """Run `tokens` from a named state, and atomically replace the named state by the state after them.

    Without tokens the state does not change. Raises NotFoundError if the named state is gone or was replaced meanwhile,
    and InvalidRequestError for a state that comes from the operator's files.
    """
    states = engine.states
    key = (await states.get(name_or_id)).id
    async with states.lock(key):
        named = await states.get(str(key))
        if not tokens:
            return named, Cost(0, 0)
        check_changeable(named, "state")
        frozen, cost = await run_tokens(engine, named.frozen, tokens)
        return await states.compare_and_set(named, frozen, source="advance"), cost


async def run_tokens(
    engine: EngineLike, initial_state: FrozenState | None, tokens: Sequence[int], *, wait_for_room: bool = False
) -> tuple[FrozenState, Cost]:
    """Run `tokens` from a recurrent state without generating text; return the state after them and the token counts.

    Raises OverloadedError if the queue is full, unless `wait_for_room` is set.
    """
    request = GenerateRequest(
        prompt=tokens,
        initial_state=None if initial_state is None else initial_state.for_request,
        max_tokens=0,
        keep_end=True,
    )
    [(_, ended)] = [each async for each in run_each(engine, [request], wait_for_room=wait_for_room)]
    end = ended.finished.end
    assert end is not None  # it was requested
    return await asyncio.to_thread(state_after, engine.info.shape, initial_state, end), ended.cost


def state_after(shape: ModelShape, initial_state: FrozenState | None, end: EndState) -> FrozenState:
    """Return a request's last state in the form for a name. Raises StateError if numbers are not finite."""
    taken_in, before = (0, ()) if initial_state is None else (initial_state.num_tokens, initial_state.last_tokens)
    return freeze_state(
        end.state,
        shape,
        "the state at the end",
        logits=end.logits,
        num_tokens=0 if taken_in is None else taken_in + len(end.tokens),
        last_tokens=(*before, *end.tokens),
        lora=None if initial_state is None else initial_state.lora,
    )


async def settle_end(
    engine: EngineLike, initial_state: FrozenState | None, request: GenerateRequest, end: EndState, text: bytes
) -> FrozenState:
    """Return the recurrent state after a request's prompt and all of the `text` that was generated for it.

    `end` may lack the end of the text: the token that ended the request was not run. If that token had text besides the
    stop sequence, this text is run here.
    """
    initial = await asyncio.to_thread(state_after, engine.info.shape, initial_state, end)
    taken_in = engine.detokenize(end.tokens[len(request.prompt) :])
    if len(text) <= len(taken_in):
        return initial
    rest = engine.tokenize(text[len(taken_in) :].decode(errors="replace"))
    settled, _ = await run_tokens(engine, initial, rest, wait_for_room=True)  # the answer is complete: don't lose it
    return settled


async def check_room(engine: EngineLike, name: str, retention: Retention) -> None:
    """Raise the error with which storing a new state under `name` would fail now, before tokens are run for it."""
    shape = engine.info.shape
    await engine.states.check_place(name, retention, shape.state_bytes + 4 * shape.row_size)


F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class FieldDifference:
    """The difference of two states in one field, as norms by layer and column: by head, or only one."""

    name: str
    kind: FieldKind
    norms: F64  # [L, columns] Euclidean norms in the first state
    other_norms: F64  # [L, columns] in the second one
    distances: F64  # [L, columns] norms of the difference

    @property
    def relative(self) -> F64:
        """The norms of the difference, divided by the mean of the two states' norms, [L, columns].

        0 means equal; 2 means that one state is zero or that both are opposite.
        """
        means = (self.norms + self.other_norms) / 2
        return np.divide(self.distances, means, out=np.zeros_like(means), where=means > 0)


def state_difference(state: State, other: State, shape: ModelShape) -> Iterator[FieldDifference]:
    """Yield the norms of the difference of two states, by the fields in the order of `shape.state_fields`."""
    for field in shape.state_fields:
        columns = field.shape[0] if field.kind is FieldKind.MATRIX else 1
        first, second = (
            one[field.name].reshape(shape.num_layers, columns, -1).astype(np.float64) for one in (state, other)
        )
        yield FieldDifference(
            field.name, field.kind, *(np.linalg.norm(each, axis=-1) for each in (first, second, first - second))
        )
