"""One replica as a front sees it: the requests that it runs for the front, and the stream that answers them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Self

from rnn_engine.errors import RnnEngineError
from rnn_engine.fleet.errors import ReplicaLostError
from rnn_engine.fleet.links import Links
from rnn_engine.fleet.wire import Outcome, Report, unpack_outcomes
from rnn_engine.requests import Event, Finished
from rnn_engine.scheduler import Inbox

_log = logging.getLogger(__name__)


class EndedError(RnnEngineError):
    """A request ended without saying so."""


class Member:
    """A replica, and the requests of this front that it runs. For one event loop."""

    def __init__(self, links: Links, front: str, report: Report) -> None:
        self.name = report.name
        self.report = report  # the last one
        self.leaving = False  # it is in no survey any more, and gets no new requests
        self.lost = False  # it can't be reached any more
        self.ready = asyncio.Event()  # its stream has begun, or is lost
        self._links = links
        self._front = front
        self._requests: dict[int, RemoteRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stream = asyncio.create_task(self._read_stream())

    @property
    def takes_requests(self) -> bool:
        """Whether new requests may go there."""
        return self.ready.is_set() and not self.leaving and not self.lost and self.report.health.status == "ok"

    @property
    def outstanding(self) -> int:
        """How many requests of this front are there."""
        return len(self._requests)

    def note(self, report: Report | None) -> None:
        """Take what the replica tells of itself; None where it is not among those that take requests."""
        self.leaving = report is None
        self.report = report or self.report

    def request(self, key: int, call: bytes) -> RemoteRequest:
        """Return a context manager that has a request run while its block runs."""
        return RemoteRequest(self, key, call)

    def enter(self, request: RemoteRequest) -> asyncio.Task[None]:
        """Send a request; for `request`."""
        self._requests[request.key] = request
        if self.lost:
            request.put(self._lost_error("its stream has ended"))
        return self._spawn(self._run(request))

    def leave(self, request: RemoteRequest) -> None:
        """Drop what is told of a request from now on; for `request`."""
        del self._requests[request.key]

    def hold(self, key: int, held: bool) -> None:
        """Have the replica stop to read a request's events, or go on; for `request`."""
        self._spawn(self._links.hold(self.name, self._front, key, held))

    def fail(self, error: RnnEngineError) -> None:
        """End all requests with `error`."""
        for request in self._requests.values():
            request.put(error)

    async def close(self) -> None:
        """Leave the stream, and wait until what was cancelled is."""
        self._stream.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait((self._stream, *self._tasks))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, request: RemoteRequest) -> None:
        """Have a request run. How it ends is told in the stream, unless the way there fails."""
        try:
            await self._links.run(self.name, self._front, request.key, request.call)
        except ReplicaLostError as error:
            self.lost = True
            request.put(error)
        except Exception as error:
            _log.exception("a request failed at the replica %s", self.name)
            request.put(RnnEngineError(f"{type(error).__name__}: {error}"))

    async def _read_stream(self) -> None:
        reason = "its stream has ended"
        try:
            async with aclosing(self._links.parcels(self.name, self._front)) as parcels:
                async for data in parcels:
                    for key, outcome in unpack_outcomes(data):
                        request = self._requests.get(key)
                        if request is not None:  # else its reader has left
                            request.put(outcome)
                    self.ready.set()
        except Exception as error:
            reason = str(error) or type(error).__name__
            _log.warning("the stream of the replica %s broke off: %s", self.name, reason)
        finally:
            self.lost = True
            self.ready.set()
            self.fail(self._lost_error(reason))

    def _lost_error(self, reason: str) -> ReplicaLostError:
        return ReplicaLostError(self.name, reason)


class RemoteRequest:
    """A request at one replica, which runs while the block runs. A context manager that gives itself.

    Not a generator: a loop that shuts down closes all generators at once.
    """

    def __init__(self, member: Member, key: int, call: bytes) -> None:
        self.key = key
        self.call = call
        self._member = member
        self._inbox = Inbox(partial(member.hold, key))
        self._ended = False

    def put(self, outcome: Outcome) -> None:
        """Take what is told of the request. Nothing counts after its end."""
        if self._ended:
            return
        if outcome is None:
            outcome = EndedError()
        self._ended = isinstance(outcome, (Finished, RnnEngineError))
        self._inbox.put(outcome)

    async def get(self) -> Event:
        """Wait for the next event. Raises the error that ends the request, or EndedError."""
        return await self._inbox.get()

    @property
    def num_tokens(self) -> int:
        """How many tokens have come."""
        return self._inbox.num_tokens

    def __enter__(self) -> Self:
        self._run = self._member.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._member.leave(self)
        if not self._ended:
            self._run.cancel()
