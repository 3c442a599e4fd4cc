"""Keeping the state at the end of an answer under the name that the request gives in `save_as`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.naming import check_room, settle_end
from rnn_engine.requests import Finished, GenerateRequest, TokenInfo
from server.schemas.retention import NewStateBody
from server.schemas.state_entry import StateEntry, state_entry
from server.state.resolve import ResolvedState
from states.named.entry import NamedState, Retention, check_changeable


class EndSaver:
    """Saves the end of the one call of a request. A name that the request itself starts from goes on with it."""

    def __init__(
        self, engine: EngineLike, wanted: NewStateBody, resolved: ResolvedState, call: GenerateRequest
    ) -> None:
        self._engine = engine
        self._wanted = wanted
        self._resolved = resolved
        self.call = replace(call, keep_end=True)

    @classmethod
    async def create(
        cls, engine: EngineLike, wanted: NewStateBody, resolved: ResolvedState, calls: Sequence[GenerateRequest]
    ) -> Self:
        """Raises what keeping the state would raise now, before anything runs."""
        if len(calls) != 1:
            raise InvalidRequestError("save_as", wanted.name, f"null unless there is one answer; here are {len(calls)}")
        saver = cls(engine, wanted, resolved, calls[0])
        continued = saver._continued
        if continued is None:
            try:
                await check_room(engine, wanted.name, wanted.retention)
            except InvalidRequestError as error:
                field = "save_as" if error.field == "name" else f"save_as.{error.field}"
                raise InvalidRequestError(field, error.value, error.allowed) from None
            return saver
        check_changeable(continued, "save_as")
        if wanted.retention != Retention():
            raise InvalidRequestError(
                "save_as", wanted.retention, "the name alone where it is that of `state`, which stays as it is kept"
            )
        return saver

    async def save(self, tokens: Sequence[TokenInfo], finished: Finished) -> StateEntry:
        """Keep the end of the call, which gave these tokens."""
        assert finished.end is not None  # it was asked for
        states, old = self._engine.states, self._continued
        text = _text_of(tokens, finished)
        frozen = await settle_end(self._engine, self._resolved.frozen, self.call, finished.end, text)
        if old is not None:
            return state_entry(await states.compare_and_set(old, frozen, source="answer"))
        wanted = self._wanted
        return state_entry(await states.put(wanted.name, frozen, wanted.retention, source="answer"))

    @property
    def _continued(self) -> NamedState | None:
        """The state that the request starts from, where the end is kept under its name."""
        named = self._resolved.named
        return named if named is not None and named.name == self._wanted.name else None


def _text_of(tokens: Sequence[TokenInfo], finished: Finished) -> bytes:
    """Return what was generated, up to the stop."""
    text = b"".join(info.data for info in tokens)
    return text.partition(finished.stop)[0] if isinstance(finished.stop, bytes) else text
