"""Delivery of events from the worker's thread to the readers of requests, and the limit on the number of requests."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from types import TracebackType

from rnn_engine.errors import EngineClosedError, MaskError, OverloadedError, RnnEngineError, StepError
from rnn_engine.requests import ANONYMOUS, Client, Event, TextDelta

MAX_UNREAD = 4096  # tokens and their alternatives; a request with more of them is paused until its reader catches up


@dataclass(slots=True)  # neither frozen nor a tuple, which take twice as long to make: there is one a token
class Delivery:
    """An event or final error for the reader of inbox `key`. Nothing follows a `Finished` or an error."""

    key: int
    outcome: Event | RnnEngineError


def step_error(error: Exception) -> StepError:
    """Return a new StepError, or MaskError, caused by `error`, so that tracebacks of requests do not mix."""
    failure = (MaskError if isinstance(error, MaskError) else StepError)(str(error) or type(error).__name__)
    failure.__cause__ = error
    return failure


class Inbox:
    """A request's unread events, for one event loop. A reader that is behind gets all text in one event."""

    def __init__(self, pause: Callable[[bool], None]) -> None:
        """Start empty. `pause` is called with True if the reader falls too far behind, and False once it is back."""
        self._pause = pause
        self._outcomes: deque[Event | RnnEngineError] = deque()
        self.num_tokens = 0  # that have been put
        self._unread = 0
        self._paused = False
        self._reader: asyncio.Future[None] | None = None  # waits for something to read

    def put(self, outcome: Event | RnnEngineError) -> None:
        """Append an event of the request, or the error that ends it."""
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
        """Wait for the next event and remove it; raise the error that ends the request if that comes next."""
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
        """Remove the text deltas that follow `first` directly, and return one delta with the text of all."""
        deltas = [first]
        while self._outcomes and type(following := self._outcomes[0]) is TextDelta:
            deltas.append(following)
            self._outcomes.popleft()
        self._unread = 0  # all text is consecutive: `Started` comes before it, and `Finished` after
        if self._paused:
            self._paused = False
            self._pause(False)
        if len(deltas) == 1:
            return first
        text = "".join(delta.text for delta in deltas)
        return TextDelta(text, tuple(chain.from_iterable(delta.tokens for delta in deltas)))


_GATHER_SECONDS = 0.001  # a delivery that follows another one sooner waits until this time has passed


class Inboxes:
    """The inboxes of running requests, for the event loop's thread; the worker calls `post`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inboxes: dict[int, Inbox] = {}
        self._outbox: list[Delivery] = []  # from the worker's thread to the loop's
        self._is_awake = False  # the loop is going to look into the outbox by itself
        self._lock = threading.Lock()  # for the two above

    def __len__(self) -> int:
        return len(self._inboxes)

    def open(self, key: int, pause: Callable[[bool], None]) -> Inbox:
        """Return a new inbox for the request `key`, which gets the events with this key. For `pause` see `Inbox`."""
        inbox = self._inboxes[key] = Inbox(pause)
        return inbox

    def remove(self, key: int) -> None:
        """Remove the inbox of the request `key`. Further deliveries with this key are dropped."""
        del self._inboxes[key]

    def post(self, deliveries: list[Delivery]) -> None:
        """Queue deliveries, and wake the loop unless it will look anyway. May be called on any thread."""
        with self._lock:
            self._outbox += deliveries
            asleep, self._is_awake = not self._is_awake, True
        if asleep:
            with suppress(RuntimeError):  # the loop was closed, so nobody is left to read anything
                self._loop.call_soon_threadsafe(self._dispatch)

    def end(self, make_error: Callable[[], RnnEngineError]) -> None:
        """Deliver all posted events, then end all inboxes with errors; `make_error` makes a new one for each."""
        self._empty_outbox()
        for inbox in self._inboxes.values():
            inbox.put(make_error())

    def _dispatch(self) -> None:
        """Deliver posted events until `_GATHER_SECONDS` pass without any, so that quick steps share a wake-up."""
        if self._empty_outbox():
            self._loop.call_later(_GATHER_SECONDS, self._dispatch)

    def _empty_outbox(self) -> bool:
        """Move all posted events to their inboxes; return True if there were any."""
        with self._lock:
            deliveries, self._outbox = self._outbox, []
            self._is_awake = len(deliveries) > 0
        for delivery in deliveries:
            inbox = self._inboxes.get(delivery.key)
            if inbox is not None:  # else its client has left
                inbox.put(delivery.outcome)
        return len(deliveries) > 0


# Admission: an engine has a bounded number of requests at a time; further ones are rejected, or wait to be admitted.

RETRY_SECONDS = (1.0, 60.0)  # the least and the most that a refused client is advised to wait


class Admission:
    """Limits how many requests an engine has at a time: `num_running` that run and `num_queued` that wait for a slot.

    Each admitted request holds a place. Any client may take all of these places. Another `num_queued` places are
    reserved for clients that hold less than their share. Such a client gets one while it holds fewer places than are
    left of the reserved ones. So a client that fills the queue keeps no other client out, and no admitted request is
    ended for the sake of another. Clients in the background have no share: they only get places that are free.

    A place that becomes free goes to a waiting request before any new one. The client with the fewest places for its
    weight comes first, those in the background after all others. Of a client's requests, the one that has waited
    longest comes first. All methods are for one event loop.
    """

    def __init__(self, num_running: int, num_queued: int) -> None:
        self._num_running = num_running
        self._num_queued = num_queued
        self._held: Counter[Client] = Counter()  # places; only clients that have any
        self._taken = 0
        self._waiting: dict[Client, deque[asyncio.Future[None]]] = {}  # only clients for which there is no place
        self._seconds: float | None = None  # that a request takes, a running mean

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def retry_after(self) -> float:
        """Seconds until half of the waiting requests have a slot, and as many refused clients will have places."""
        num_waiting = max(self._taken - self._num_running, 0)
        seconds = (self._seconds or 0.0) * (1 + num_waiting / 2) / self._num_running
        return min(max(seconds, RETRY_SECONDS[0]), RETRY_SECONDS[1])

    def check(self, client: Client = ANONYMOUS) -> None:
        """Raise OverloadedError if a request of `client` could not be admitted now."""
        if not self._has_place(client):
            raise OverloadedError(
                f"{self._taken} requests are running or queued; expected at most {self._num_running} running and "
                f"{self._num_queued} queued",
                retry_after=self.retry_after,
            )

    def place(self, client: Client = ANONYMOUS, *, wait: bool) -> QueuePlace:
        """Return a context manager that admits a request of `client`: it holds a place for it while its block runs.

        With `wait`, entering it waits until there is a place, and raises EngineClosedError if `close` is called
        meanwhile. Without, entering it raises OverloadedError if there is none.
        """
        return QueuePlace(self, client, wait)

    async def take(self, client: Client, *, wait: bool) -> None:
        """Admit a request of `client`, waiting or not as described at `place`. Called by `QueuePlace`."""
        if not wait:
            self.check(client)
        elif not self._has_place(client):
            await self._wait(client)
            return
        self._count(client, 1)

    def give_back(self, client: Client) -> None:
        """Free the place of a request of `client`, and admit a waiting one if there is any. Called by `QueuePlace`."""
        self._count(client, -1)
        self._hand_on()

    def note_duration(self, seconds: float) -> None:
        """Record how many seconds a request took, in the mean from which `retry_after` is computed."""
        before = seconds if self._seconds is None else self._seconds
        self._seconds = before + 0.1 * (seconds - before)

    def resize(self, num_running: int) -> None:
        """Change the number of requests that may run at a time. Requests that were admitted stay so."""
        self._num_running = num_running
        self._hand_on()

    def close(self) -> None:
        """Make all requests that wait to be admitted raise EngineClosedError."""
        for place in chain.from_iterable(self._waiting.values()):
            if not place.done():
                place.set_exception(EngineClosedError("the engine has stopped"))
        self._waiting.clear()

    def _has_place(self, client: Client) -> bool:
        free = self._num_running + self._num_queued - self._taken
        if free > 0 or client.is_background:
            return free > 0
        held = self._held[client]
        sharing = sum(other.weight for other in self._held if not other.is_background)
        weights = sharing + (client.weight if held == 0 else 0.0)
        share = (self._num_running + self._num_queued) * client.weight / weights
        return held < min(share, self._num_queued + free)

    def _count(self, client: Client, more: int) -> None:
        self._taken += more
        self._held[client] += more
        if self._held[client] == 0:
            del self._held[client]

    def _hand_on(self) -> None:
        """Admit as many waiting requests as there are free places."""
        while clients := [client for client in self._waiting if self._has_place(client)]:
            client = min(clients, key=lambda client: client.rank(self._held[client]))
            waiting = self._waiting[client]
            place = waiting.popleft()
            if not waiting:
                del self._waiting[client]
            if not place.done():  # else it was cancelled
                self._count(client, 1)
                place.set_result(None)

    async def _wait(self, client: Client) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.give_back(client)  # it was handed over in the same turn of the loop
            raise


class QueuePlace:
    """The context manager that `Admission.place` returns: it keeps one request admitted while its block runs.

    It is not a generator, because a loop that shuts down closes all generators at once: this one would be closed before
    the block inside it.
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
