"""The way of one request's events from the worker to whoever reads them on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from rnn_engine.errors import MaskError, RnnEngineError, StepError
from rnn_engine.requests import Event, TextDelta

MAX_UNREAD = 4096  # tokens and their alternatives; a request with more of them is paused until its reader catches up


@dataclass(slots=True)  # neither frozen nor a tuple, which take twice as long to make: there is one a token
class Delivery:
    """An event or an error for the client of one request. Nothing follows a `Finished` or an error."""

    key: int
    outcome: Event | RnnEngineError


def step_error(error: Exception) -> StepError:
    """Return a new StepError that `error` caused: each request gets its own, so that tracebacks do not mix."""
    failure = (MaskError if isinstance(error, MaskError) else StepError)(str(error) or type(error).__name__)
    failure.__cause__ = error
    return failure


class Inbox:
    """The events of one request that have not been read. For one event loop and one reader.

    A reader that is behind gets all text that has come in one event, so that it catches up at once.
    """

    def __init__(self, pause: Callable[[bool], None]) -> None:
        """`pause` is called with True where the reader is too far behind, and with False once it has caught up."""
        self._pause = pause
        self._outcomes: deque[Event | RnnEngineError] = deque()
        self.num_tokens = 0  # that have been put
        self._unread = 0
        self._paused = False
        self._reader: asyncio.Future[None] | None = None  # waits for something to read

    def put(self, outcome: Event | RnnEngineError) -> None:
        """Append an event, or the error that ends the request."""
        self._outcomes.append(outcome)
        if type(outcome) is TextDelta:
            self.num_tokens += len(outcome.tokens)
            for info in outcome.tokens:
                self._unread += 1 + len(info.top)
            if self._unread > MAX_UNREAD and not self._paused:
                self._paused = True
                self._pause(True)
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    async def get(self) -> Event:
        """Wait for the next event and remove it. Raises the error that ends the request where that is next."""
        if not self._outcomes:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        outcome = self._outcomes.popleft()
        if type(outcome) is TextDelta:
            return self._join(outcome)
        if isinstance(outcome, RnnEngineError):
            raise outcome
        return outcome

    def _join(self, first: TextDelta) -> TextDelta:
        """Remove the text that follows `first` directly, and return both in one."""
        deltas = [first]
        while self._outcomes and type(following := self._outcomes[0]) is TextDelta:
            deltas.append(following)
            self._outcomes.popleft()
        self._unread = 0  # all text lies in one row: `Started` comes before it, and `Finished` after
        if self._paused:
            self._paused = False
            self._pause(False)
        if len(deltas) == 1:
            return first
        text = "".join(delta.text for delta in deltas)
        return TextDelta(text, tuple(chain.from_iterable(delta.tokens for delta in deltas)))
