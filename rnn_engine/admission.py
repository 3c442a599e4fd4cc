"""Bounds how many requests are with an engine at a time: refuses those beyond, or lets them wait."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from itertools import chain
from types import TracebackType

from rnn_engine.errors import EngineClosedError, OverloadedError
from rnn_engine.requests import ANONYMOUS, Client

RETRY_SECONDS = 1.0  # advice to refused clients until a request has been timed


class Admission:
    """Places for `num_running` requests that run and `num_queued` that wait for a slot, shared by clients.

    Any client may take them all. Beyond them, another `num_queued` places are for clients that have less than their
    share, and each may have no more than it leaves to others. So a client that fills the queue keeps nobody out, and
    no request that was admitted is ended for another.

    A place that becomes free goes to one that waits for it before any new request: of the client that has least for its
    weight, to the one that has waited longest. All methods are for one event loop.
    """

    def __init__(self, num_running: int, num_queued: int) -> None:
        self._num_running = num_running
        self._num_queued = num_queued
        self._held: Counter[Client] = Counter()  # places; only clients that have any
        self._taken = 0
        self._waiting: dict[Client, deque[asyncio.Future[None]]] = {}  # only where there is no place for them
        self._seconds: float | None = None  # that a request takes, a running mean

    @property
    def taken(self) -> int:
        """How many places are taken."""
        return self._taken

    @property
    def retry_after(self) -> float:
        """After how many seconds a place is likely to be free."""
        return (RETRY_SECONDS if self._seconds is None else self._seconds) / self._num_running

    def check(self, client: Client = ANONYMOUS) -> None:
        """Raise OverloadedError if there is no place for `client` now."""
        if not self._has_place(client):
            raise OverloadedError(
                f"{self._taken} requests are running or queued; expected at most {self._num_running} running and "
                f"{self._num_queued} queued",
                retry_after=self.retry_after,
            )

    def place(self, client: Client = ANONYMOUS, *, wait: bool) -> Place:
        """Return a context manager that holds a place while its block runs.

        With `wait`, entering waits until there is one, and raises EngineClosedError if `close` is called meanwhile.
        Otherwise it raises OverloadedError if there is none.
        """
        return Place(self, client, wait)

    async def take(self, client: Client, *, wait: bool) -> None:
        """Take a place, as `place` does; for it to use."""
        if not wait:
            self.check(client)
        elif not self._has_place(client):
            await self._wait(client)
            return
        self._count(client, 1)

    def give_back(self, client: Client) -> None:
        """Hand a place to one that waits for it; for `place` to use."""
        self._count(client, -1)
        self._hand_on()

    def note_duration(self, seconds: float) -> None:
        """Count a request that ended in the mean time that refused clients are told to wait."""
        before = seconds if self._seconds is None else self._seconds
        self._seconds = before + 0.1 * (seconds - before)

    def resize(self, num_running: int) -> None:
        """Have another number of places for requests that run. Those that are taken stay so where it is less."""
        self._num_running = num_running
        self._hand_on()

    def close(self) -> None:
        """End all that wait with EngineClosedError."""
        for place in chain.from_iterable(self._waiting.values()):
            if not place.done():
                place.set_exception(EngineClosedError("the engine has stopped"))
        self._waiting.clear()

    def _has_place(self, client: Client) -> bool:
        free = self._num_running + self._num_queued - self._taken
        if free > 0:
            return True
        held = self._held[client]
        weights = sum(other.weight for other in self._held) + (client.weight if held == 0 else 0.0)
        share = (self._num_running + self._num_queued) * client.weight / weights
        return held < min(share, self._num_queued + free)

    def _count(self, client: Client, more: int) -> None:
        self._taken += more
        self._held[client] += more
        if self._held[client] == 0:
            del self._held[client]

    def _hand_on(self) -> None:
        """Give the places that are free to those that wait."""
        while clients := [client for client in self._waiting if self._has_place(client)]:
            client = min(clients, key=lambda client: self._held[client] / client.weight)
            waiting = self._waiting[client]
            place = waiting.popleft()
            if not waiting:
                del self._waiting[client]
            if not place.done():  # else it was cancelled
                self._count(client, 1)
                place.set_result(None)

    async def _wait(self, client: Client) -> None:
        """Wait for a place, which is taken then."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.give_back(client)  # it was handed over in the same turn of the loop
            raise


class Place:
    """A context manager that holds one place.

    Not a generator: a loop that shuts down closes all generators at once, this one before the block inside it.
    """

    def __init__(self, admission: Admission, client: Client, wait: bool) -> None:
        self._admission = admission
        self._client = client
        self._wait = wait

    async def __aenter__(self) -> None:
        await self._admission.take(self._client, wait=self._wait)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._admission.give_back(self._client)
