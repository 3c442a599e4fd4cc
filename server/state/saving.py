"""Keeping the state at the end of an answer under the name that the request gives in `save_as`.

Knows one answer and the registry; knows neither streams nor what an answer looks like.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.naming import check_room, settle_end
from rnn_engine.requests import Finished, GenerateRequest, TokenInfo
from server.schemas.keeping import NewStateBody
from server.schemas.state_entry import StateEntry, state_entry
from server.state.resolve import ResolvedState
from states.named.entry import Retention


class EndSaver:
    """Saves the end of the one call of a request. A name that the request itself starts from goes on with it."""

    def __init__(
        self, engine: EngineLike, wanted: NewStateBody, resolved: ResolvedState, calls: Sequence[GenerateRequest]
    ) -> None:
        """Raises what keeping the state would raise now, before anything runs."""
        if len(calls) != 1:
            raise InvalidRequestError("save_as", wanted.name, f"null unless there is one answer; here are {len(calls)}")
        self._engine = engine
        self._wanted = wanted
        self._resolved = resolved
        self._goes_on = resolved.named is not None and resolved.named.name == wanted.name
        if not self._goes_on:
            check_room(engine, wanted.name, wanted.keeping)
        elif wanted.keeping != Retention():
            raise InvalidRequestError(
                "save_as", wanted.keeping, "the name alone where it is that of `state`, which stays as it is kept"
            )
        self.call = replace(calls[0], keep_end=True)

    async def save(self, tokens: Sequence[TokenInfo], finished: Finished) -> StateEntry:
        """Keep the end of the call, which gave these tokens."""
        assert finished.end is not None  # it was asked for
        states, resolved = self._engine.states, self._resolved
        text = _text_of(tokens, finished)
        initial = await settle_end(self._engine, resolved.frozen, self.call, finished.end, text)
        if self._goes_on and resolved.named is not None:
            named = await asyncio.to_thread(states.replace, resolved.named, initial, "answer")
        else:
            named = await asyncio.to_thread(
                states.put, self._wanted.name, initial, self._wanted.keeping, source="answer"
            )
        return state_entry(states, named)


def _text_of(tokens: Sequence[TokenInfo], finished: Finished) -> bytes:
    """What was generated, up to the stop."""
    text = b"".join(info.data for info in tokens)
    return text.partition(finished.stop)[0] if isinstance(finished.stop, bytes) else text
