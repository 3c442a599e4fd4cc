"""The threads for work that would block the event loop, which clients share fairly.

The functions are pure Python in parts, so a thread does not make them quicker; it lets the event loop answer others
meanwhile. Few run at a time, so that the memory that they take is bounded too.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rnn_engine.requests import Client
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.routing import AppKey

T = TypeVar("T")

NUM_WORKERS = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    function: Callable[[], Any]
    done: asyncio.Future[Any]


class Workers:
    """Runs functions on `num_threads` threads. All methods are for one event loop.

    One client, and all clients in the background together, leave a thread to others. Clients take turns, those in the
    background after all others. A function whose caller has left is not begun.
    """

    def __init__(self, num_threads: int = NUM_WORKERS) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="work")
        self._num_threads = num_threads
        self._waiting: dict[Client, deque[_Job]] = {}  # only clients that have any, the longest unserved first
        self._running: Counter[Client] = Counter()

    async def run(self, client: Client, function: Callable[[], T]) -> T:
        """Run `function` on a thread in its turn, in the caller's context, and return its result."""
        job = _Job(partial(copy_context().run, function), asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(job)
        self._begin()
        try:
            result: T = await job.done
        except asyncio.CancelledError:
            self._forget(client, job)
            raise
        return result

    def close(self) -> None:
        """Begin no more functions. Does not wait for those that run."""
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while (client := self._next()) is not None:
            jobs = self._waiting.pop(client)
            job = jobs.popleft()
            if jobs:
                self._waiting[client] = jobs  # now the last
            self._running[client] += 1
            running = asyncio.get_running_loop().run_in_executor(self._threads, job.function)
            running.add_done_callback(partial(self._end, client, job))

    def _next(self) -> Client | None:
        """Return the client whose turn it is, or None if none may run a function now."""
        if self._running.total() >= self._num_threads:
            return None
        most = self._num_threads - 1
        background = sum(count for client, count in self._running.items() if client.is_background)
        may_run = (
            client for client in self._waiting if (background if client.is_background else self._running[client]) < most
        )
        return min(may_run, key=lambda client: client.is_background, default=None)

    def _end(self, client: Client, job: _Job, ran: asyncio.Future[Any]) -> None:
        self._running[client] -= 1
        if self._running[client] == 0:
            del self._running[client]
        if job.done.done() or ran.cancelled():
            job.done.cancel()
        elif (error := ran.exception()) is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(ran.result())
        self._begin()

    def _forget(self, client: Client, job: _Job) -> None:
        """Drop a job that nobody waits for any more, unless it runs."""
        jobs = self._waiting.get(client, deque())
        if job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._waiting[client]


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
    return await call.app[WORKERS].run(call.client, function)
