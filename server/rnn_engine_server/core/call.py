"""A call of a route as its handler sees it: the client, its limits, its memory, and its work on threads."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from aiohttp import web

from rnn_engine.errors import OverloadedError
from rnn_engine.interface import EngineLike
from rnn_engine.pauses import PAUSE
from rnn_engine.requests import Client, LatestClients
from rnn_engine_server.auth.keys import Principal
from rnn_engine_server.auth.quotas import Spending
from rnn_engine_server.core.errors import RefusalError
from rnn_engine_server.core.routing import SETTINGS, App, AppKey, Route
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.models.registry import ModelUse
from rnn_engine_server.telemetry.records import RequestRecord

RECORD = web.RequestKey("record", RequestRecord)
"""The record of an HTTP request."""

# The memory that calls hold for their bodies, counted in one budget.

FREE_BYTES = 1 << 16
"""Bytes that each request may hold without being counted, so that small requests run while large ones take all the
memory.
"""

_HELD_RETRY_SECONDS = 1.0
_VALUE_BYTES = {b",": 48, b":": 150, b"{": 100, b"[": 80}  # about what Python needs for the value after the character


def parsed_bytes(data: bytes | bytearray) -> int:
    """Estimate how many bytes of memory a JSON text will take once parsed.

    Commas and brackets in strings count too, as if they separated values.
    """
    text = np.frombuffer(data, np.uint8)  # `bytes.count` would stop all other threads
    return 2 * len(data) + sum(size * int(np.count_nonzero(text == ord(each))) for each, size in _VALUE_BYTES.items())


class MemoryBudget:
    """A budget for the memory that all running requests together use for their bodies. For one event loop."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0

    @property
    def most_each(self) -> int:
        """The most bytes of the budget that one request may hold."""
        return self.capacity // 2 + FREE_BYTES

    @contextmanager
    def lease(self) -> Iterator[MemoryLease]:
        """Count one request's memory during a `with` block, whose end returns all of it to the budget."""
        lease = MemoryLease(self)
        try:
            yield lease
        finally:
            lease.hold(0)


class MemoryLease:
    """The memory that one request holds, counted in a memory budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.num_bytes = 0
        self._counted = 0

    def hold(self, num_bytes: int) -> None:
        """Set the number of bytes that the request holds in total to `num_bytes`.

        Raises OverloadedError if the budget has no room.
        """
        counted = max(num_bytes - FREE_BYTES, 0)
        held = self.budget.held + counted - self._counted
        if counted > self._counted and held > self.budget.capacity:
            raise OverloadedError(
                f"requests hold {self.budget.held} bytes of memory, and this one needs {counted - self._counted} more; "
                f"expected at most {self.budget.capacity} (max_held_bytes)",
                retry_after=_HELD_RETRY_SECONDS,
            )
        self.num_bytes, self.budget.held, self._counted = num_bytes, held, counted


BUDGET = AppKey("budget", MemoryBudget)
"""The memory that all calls share."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of a route. It has come over a connection, or the server makes it itself."""

    app: App
    route: Route
    principal: Principal
    client: Client  # under whose name it waits for slots, and counts against the rates of `principal`
    record: RequestRecord
    path: str  # for which it was sent, decoded
    parameters: Mapping[str, str] = field(default_factory=dict)  # in the path
    query: Mapping[str, str] = field(default_factory=dict)
    deadline: float = math.inf  # when what it generates must end at the latest, by `time.monotonic`
    origin: object = None  # for which part of the server it is made
    http: web.Request | None = None  # with which it has come
    text: bytes | bytearray = b""  # of the body, if the route keeps it
    left_out: set[str] = field(default_factory=set)  # unknown fields of the body and parts of its schemas: ignored
    spending: Spending | None = None  # of the client's quota; None if there is no quota, or no engine was used
    use: ModelUse | None = None  # of a model; None if the route uses none
    lease: MemoryLease = field(init=False)
    ending: ExitStack = field(default_factory=ExitStack)  # what is done when the call has ended

    @property
    def model(self) -> ModelUse:
        """The use of the model that the call names."""
        assert self.use is not None, self.route.path
        return self.use

    @property
    def engine(self) -> EngineLike:
        """The engine of the model that the call names, as its principal sees it."""
        return self.model.engine

    @property
    def limits(self) -> Limits:
        """The server's limits on what one call may ask for."""
        return self.app[SETTINGS].limits

    @property
    def request(self) -> web.Request:
        """The HTTP request of the call, for routes that read more of it than a body in JSON."""
        assert self.http is not None, self.route.path
        return self.http

    def hold_more(self, what: str, num_bytes: int) -> None:
        """Add `num_bytes` to the memory that the call holds. `what` names their use in errors.

        Raises OverloadedError if calls hold too much memory, and RefusalError if one may not hold as much.
        """
        if num_bytes > (most := self.lease.budget.most_each):
            raise too_large(f"{what} would take about {num_bytes} bytes of memory", most)
        self.lease.hold(self.lease.num_bytes + num_bytes)


def too_large(found: str, most: int) -> RefusalError:
    """Return the error for a body, or what it asks for, that takes more than `most` bytes."""
    return RefusalError(413, f"{found}; expected at most {most}")


# The threads for work that would block the event loop, which clients share fairly.
#
# Most is Python, so a thread makes nothing quicker, but the event loop answers others meanwhile. Few run at a time.

T = TypeVar("T")

NUM_WORKERS = 4
_SHORT_JOB = 1 << 16  # size of work that need not wait for the same client's longer one
_RECENT_SECONDS = 1.0  # for which a client counts as there after it has asked for something
_PIECE_SECONDS = 0.005  # of a long function between two rests
_REST = 2.0  # how long a rest is, divided by the time before it


class _Turn(NamedTuple):
    """Who may run one function at a time: a client for long ones, and for short ones."""

    client: Client
    is_short: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    function: Callable[[], Any]
    done: asyncio.Future[Any]


class Workers:
    """Runs functions on `num_threads` threads. All public methods are for one event loop.

    A client runs one long and one short function at a time, and all clients in the background together run one. More of
    them would not be quicker, since one thread at a time runs Python, but slow down the engine and everybody else.
    Clients take turns, those in the background after all others. While other clients are there, a long function rests
    at its calls of `pause`, for twice as long as it has run. So does its client when it has ended. A function whose
    caller has left is not begun.
    """

    def __init__(
        self,
        num_threads: int = NUM_WORKERS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="work")
        self._num_threads = num_threads
        self._waiting: dict[_Turn, deque[_Job]] = {}  # only those that have any, the longest unserved first
        self._running: dict[_Turn, float] = {}  # since when, or since it has rested
        self._resting: set[_Turn] = set()
        self._clock, self._sleep = clock, sleep
        self._clients = LatestClients()

    def note(self, client: Client) -> None:
        """Record that a client asks for something, on a thread or not."""
        self._clients.note(client, self._clock())

    async def run(self, client: Client, function: Callable[[], T], size: int) -> T:
        """Run `function` on a thread in its turn, in the caller's context, and return its result; see `work`."""
        turn = _Turn(client, size <= _SHORT_JOB)
        begin = partial(copy_context().run, self._run, turn, function)
        job = _Job(begin, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(turn, deque()).append(job)
        self._begin()
        try:
            result: T = await job.done
        except asyncio.CancelledError:
            self._forget(turn, job)
            raise
        return result

    def close(self) -> None:
        """Begin no more functions. Does not wait for those that run."""
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while (turn := self._next()) is not None:
            jobs = self._waiting.pop(turn)
            job = jobs.popleft()
            if jobs:
                self._waiting[turn] = jobs  # now the last
            self._running[turn] = self._clock()
            running = asyncio.get_running_loop().run_in_executor(self._threads, job.function)
            running.add_done_callback(partial(self._end, turn, job))

    def _next(self) -> _Turn | None:
        """Return whose turn it is, or None if none may run a function now."""
        if len(self._running) >= self._num_threads:
            return None
        in_background = any(turn.client.is_background for turn in self._running)
        may_run = (
            turn
            for turn in self._waiting
            if turn not in self._running
            and turn not in self._resting
            and not (turn.client.is_background and in_background)
        )
        return min(may_run, key=lambda turn: turn.client.is_background, default=None)

    def _run(self, turn: _Turn, function: Callable[[], T]) -> T:
        PAUSE.set(partial(self._pause, turn))
        return function()

    def _pause(self, turn: _Turn) -> None:
        """Rest, on the thread of a function that has run for long."""
        if (seconds := self._clock() - self._running[turn]) >= _PIECE_SECONDS:
            self._sleep(self._rest_after(turn, seconds))
            self._running[turn] = self._clock()

    def _rest_after(self, turn: _Turn, seconds: float) -> float:
        is_shared = self._clients.has_other(turn.client, self._clock() - _RECENT_SECONDS)
        return _REST * seconds if is_shared and not turn.is_short else 0.0

    def _end(self, turn: _Turn, job: _Job, ran: asyncio.Future[Any]) -> None:
        if rest := self._rest_after(turn, self._clock() - self._running.pop(turn)):
            self._resting.add(turn)
            asyncio.get_running_loop().call_later(rest, self._end_rest, turn)
        error = None if ran.cancelled() else ran.exception()  # also if nobody waits for it: asyncio must not log it
        if job.done.done() or ran.cancelled():
            job.done.cancel()
        elif error is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(ran.result())
        self._begin()

    def _end_rest(self, turn: _Turn) -> None:
        self._resting.remove(turn)
        self._begin()

    def _forget(self, turn: _Turn, job: _Job) -> None:
        """Remove a job whose caller has left, unless it runs."""
        jobs = self._waiting.get(turn, deque())
        if job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._waiting[turn]


WORKERS = AppKey("workers", Workers)

SHORT_WORK = 4096
"""Work up to this size is done at once: that takes about as long as handing it to a thread."""

CALL_WORK = 64
"""The size of the work of making one `GenerateRequest`."""


async def work(call: Call, size: int, function: Callable[[], T]) -> T:
    """Run `function`, on a worker thread if `size` is more than `SHORT_WORK`, and return its result.

    `size` is about the number of characters or tokens that the function looks at.
    """
    workers = call.app[WORKERS]
    workers.note(call.client)
    return function() if size <= SHORT_WORK else await workers.run(call.client, function, size)
