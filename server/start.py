"""From what a request says in `state` to the state that it starts from.

Knows the forms of the field and the registry; knows no route.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rnn_engine.interface import EngineLike
from rnn_engine.types import StartState
from server.schemas.start import InlineState, StatePath, StateRef
from states.files.exchange import StateFiles
from states.initial import NO_INITIAL_STATE, InitialState
from states.named import NamedState


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    """Where a request starts."""

    initial: InitialState | None  # None = the fill values
    named: NamedState | None = None  # where the request says its name or id

    @property
    def start(self) -> StartState | None:
        return None if self.initial is None else self.initial.start


async def resolve_start(engine: EngineLike, ref: StateRef | None) -> StartState | None:
    """What a `GenerateRequest` needs; see `find_beginning`."""
    return (await find_beginning(engine, ref)).start


async def find_beginning(engine: EngineLike, ref: StateRef | None) -> Beginning:
    """The state that `ref` means; None means the default.

    Raises NotFoundError for a name, an id or a file that is not there, InvalidRequestError for a path that leaves the
    folder, StateError for what does not fit the model.
    """
    states = engine.states
    match ref:
        case None:
            default = states.default
            return Beginning(None if default is None else default.initial)
        case str() if ref == NO_INITIAL_STATE:
            return Beginning(None)
        case str():
            named = states.get(ref)
            return Beginning(named.initial, named)
        case InlineState() | StatePath():
            return Beginning(await asyncio.to_thread(_load, states.files, ref))


def _load(files: StateFiles, ref: InlineState | StatePath) -> InitialState:
    if isinstance(ref, StatePath):
        return files.make_initial(files.read_requested(ref.path), ref.path)
    return files.make_initial(files.read_rows(ref.data, ref.shape), "state")
