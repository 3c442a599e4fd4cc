"""Bounds how many requests are with an engine at a time: refuses those beyond, or lets them wait."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

from rnn_engine.errors import EngineClosedError, OverloadedError

RETRY_SECONDS = 1.0  # advice to refused clients until a request has been timed


class Admission:
    """Places for `num_running` requests that run and `num_queued` that wait for a slot.

    A place that becomes free goes to the one that has waited longest for it, before any new request. All methods are
    for one event loop.
    """

    def __init__(self, num_running: int, num_queued: int) -> None:
        self._num_running = num_running
        self._num_queued = num_queued
        self._taken = 0  # less than all only while nobody waits
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._seconds: float | None = None  # that a request takes, a running mean

    @property
    def taken(self) -> int:
        """How many places are taken."""
        return self._taken

    @property
    def retry_after(self) -> float:
        """After how many seconds a place is likely to be free."""
        return (RETRY_SECONDS if self._seconds is None else self._seconds) / self._num_running

    def check(self) -> None:
        """Raise OverloadedError if there is no place now."""
        if self._taken >= self._num_running + self._num_queued:
            raise OverloadedError(
                f"{self._taken} requests are running or queued; expected at most {self._num_running} running and "
                f"{self._num_queued} queued",
                retry_after=self.retry_after,
            )

    def place(self, *, wait: bool) -> Place:
        """Return a context manager that holds a place while its block runs.

        With `wait`, entering waits until there is one, and raises EngineClosedError if `close` is called meanwhile.
        Otherwise it raises OverloadedError if there is none.
        """
        return Place(self, wait)

    async def take(self, *, wait: bool) -> None:
        """Take a place, as `place` does; for it to use."""
        if wait:
            await self._wait()
        else:
            self.check()
            self._taken += 1

    def give_back(self) -> None:
        """Hand a place to the first that waits for one; for `place` to use."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # else it was cancelled
                place.set_result(None)
                return
        self._taken -= 1

    def note_duration(self, seconds: float) -> None:
        """Count a request that ended in the mean time that refused clients are told to wait."""
        before = seconds if self._seconds is None else self._seconds
        self._seconds = before + 0.1 * (seconds - before)

    def resize(self, num_running: int) -> None:
        """Have another number of places for requests that run. Those that are taken stay so where it is less."""
        self._num_running = num_running
        while self._waiting and self._taken < self._num_running + self._num_queued:
            self._taken += 1
            self.give_back()

    def close(self) -> None:
        """End all that wait with EngineClosedError."""
        for place in self._waiting:
            if not place.done():
                place.set_exception(EngineClosedError("the engine has stopped"))
        self._waiting.clear()

    async def _wait(self) -> None:
        if self._taken < self._num_running + self._num_queued:
            self._taken += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.give_back()  # it was handed over in the same turn of the loop
            raise


class Place:
    """A context manager that holds one place.

    Not a generator: a loop that shuts down closes all generators at once, this one before the block inside it.
    """

    def __init__(self, admission: Admission, wait: bool) -> None:
        self._admission = admission
        self._wait = wait

    async def __aenter__(self) -> None:
        await self._admission.take(wait=self._wait)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._admission.give_back()
