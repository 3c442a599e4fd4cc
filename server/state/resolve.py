"""From what a request says in `state` to the state that it starts from."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rnn_engine.interface import EngineLike
from rnn_engine.types import InitialState
from server.schemas.state_ref import InlineState, MixBody, StatePath, StateRef, WeightedRef
from states.files.exchange import StateFiles
from states.frozen import NO_INITIAL_STATE, FrozenState
from states.named.entry import NamedState


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedState:
    """Where a request starts."""

    frozen: FrozenState | None  # None = the fill values
    named: NamedState | None = None  # where the request says its name or id

    @property
    def initial_state(self) -> InitialState | None:
        return None if self.frozen is None else self.frozen.for_request


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """One of the states that a request starts from."""

    resolved: ResolvedState
    weight: float = 1.0
    prompt: str | None = None  # instead of the request's

    @property
    def initial_state(self) -> InitialState | None:
        return self.resolved.initial_state


async def resolve_starts(engine: EngineLike, body: MixBody) -> list[Start]:
    """The one state that a request starts from, or all that it mixes; see `resolve_state`."""
    refs = [WeightedRef(body.state, 1.0)] if not isinstance(body.state, tuple) else body.state
    return [Start(await resolve_state(engine, one.ref), one.weight, one.prompt) for one in refs]


async def resolve_initial_state(engine: EngineLike, ref: StateRef | None) -> InitialState | None:
    """What a `GenerateRequest` needs; see `resolve_state`."""
    return (await resolve_state(engine, ref)).initial_state


async def resolve_state(engine: EngineLike, ref: StateRef | None) -> ResolvedState:
    """The state that `ref` means; None and ai00's id of zeros mean the default.

    Raises NotFoundError for a name, an id or a file that is not there, InvalidRequestError for a path that leaves the
    folder, StateError for what does not fit the model.
    """
    states = engine.states
    match ref:
        case None | "00000000-0000-0000-0000-000000000000":  # ai00's id of no state in particular
            default = await states.default()
            return ResolvedState(None if default is None else default.frozen)
        case str() if ref == NO_INITIAL_STATE:
            return ResolvedState(None)
        case str():
            named = await states.get(ref)
            return ResolvedState(named.frozen, named)
        case InlineState() | StatePath():
            return ResolvedState(await asyncio.to_thread(_load, engine.state_files, ref))


def _load(files: StateFiles, ref: InlineState | StatePath) -> FrozenState:
    if isinstance(ref, StatePath):
        return files.freeze(files.read_requested(ref.path), ref.path)
    return files.freeze(files.read_rows(ref.data, ref.shape), "state")
