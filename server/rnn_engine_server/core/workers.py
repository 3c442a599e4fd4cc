"""The threads for work that would block the event loop, which clients share fairly.

The functions are pure Python in parts, so a thread does not make them quicker; it lets the event loop answer others
meanwhile. Few run at a time, so that the memory that they take is bounded too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from rnn_engine.requests import Client
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.routing import AppKey

T = TypeVar("T")

NUM_WORKERS = 4
_SHORT_JOB = 1 << 16  # size of work that need not wait for the same client's longer one


class _Turn(NamedTuple):
    """Who may run one function at a time: a client for long ones, and for short ones."""

    client: Client
    is_short: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    function: Callable[[], Any]
    done: asyncio.Future[Any]


class Workers:
    """Runs functions on `num_threads` threads. All methods are for one event loop.

    A client runs one long and one short function at a time, and all clients in the background together run one. More of
    them would not be quicker, since one thread at a time runs Python, but slow down the engine and everybody else.
    Clients take turns, those in the background after all others. A function whose caller has left is not begun.
    """

    def __init__(self, num_threads: int = NUM_WORKERS) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="work")
        self._num_threads = num_threads
        self._waiting: dict[_Turn, deque[_Job]] = {}  # only those that have any, the longest unserved first
        self._running: set[_Turn] = set()

    async def run(self, client: Client, function: Callable[[], T], size: int) -> T:
        """Run `function` on a thread in its turn, in the caller's context, and return its result; see `work`."""
        job = _Job(partial(copy_context().run, function), asyncio.get_running_loop().create_future())
        turn = _Turn(client, size <= _SHORT_JOB)
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
            self._running.add(turn)
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
            if turn not in self._running and not (turn.client.is_background and in_background)
        )
        return min(may_run, key=lambda turn: turn.client.is_background, default=None)

    def _end(self, turn: _Turn, job: _Job, ran: asyncio.Future[Any]) -> None:
        self._running.remove(turn)
        error = None if ran.cancelled() else ran.exception()  # also if nobody waits for it: asyncio must not log it
        if job.done.done() or ran.cancelled():
            job.done.cancel()
        elif error is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(ran.result())
        self._begin()

    def _forget(self, turn: _Turn, job: _Job) -> None:
        """Drop a job that nobody waits for any more, unless it runs."""
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
    if size <= SHORT_WORK:
        return function()
    return await call.app[WORKERS].run(call.client, function, size)
