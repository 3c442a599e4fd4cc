"""The client of a shared store: a connection pool with timeouts, and circuit breakers that pause it after failures."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from importlib.resources import files
from typing import Any, TypeVar

from valkey import exceptions
from valkey.asyncio import ConnectionPool, Valkey

from rnn_engine.errors import EngineClosedError, RnnEngineError, StateError, StorageError, UnavailableError
from rnn_engine_states.shared.config import StoreCounters, StoreOutcome, StoreUrl

# A circuit breaker: after repeated failures, operations are rejected for a while, so that no request waits for them.


class CircuitBreaker:
    """A circuit breaker: after several failures in a row, it rejects operations for a pause.

    After the pause it allows one operation; if that fails, the next pause is twice as long. For one thread; `is_open`
    and `refuses` may be read on any thread.
    """

    def __init__(
        self, clock: Callable[[], float], most_failures: int = 3, first_pause: float = 1.0, longest_pause: float = 30.0
    ) -> None:
        """Open after `most_failures`, at first for `first_pause`, later up to `longest_pause` seconds."""
        self._clock = clock
        self._most_failures = most_failures
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._pause = first_pause
        self._failures = 0
        self._open_until: float | None = None  # None while closed
        self._is_tried = False  # while open: an operation was allowed after a pause, and has not ended
        self.openings = 0  # since the start

    @property
    def is_open(self) -> bool:
        return self._open_until is not None

    @property
    def refuses(self) -> bool:
        """Whether the circuit breaker rejects operations now: it is open, and its pause has not ended."""
        until = self._open_until
        return until is not None and self._clock() < until

    def allow(self) -> bool:
        """Return True if an operation may start now. While the circuit is open, allow one operation after each pause.

        The caller must then call `note_success` or `note_failure`.
        """
        if self.refuses:
            return False
        if self._open_until is not None:
            self._open_until = self._clock() + self._pause  # refuse others until this one has ended
            self._is_tried = True
        return True

    def note_success(self) -> None:
        """Close the circuit after an operation succeeded, and reset the count of failures and the pause."""
        self._failures = 0
        self._open_until = None
        self._pause = self._first_pause

    def note_failure(self) -> None:
        """Count a failed operation. Open the circuit after too many in a row; if it is open, double the pause.

        Operations that ran when it opened change nothing.
        """
        self._failures += 1
        if self._failures < self._most_failures:
            return
        if self._open_until is None:
            self.openings += 1
        elif not self._is_tried:
            return
        else:
            self._pause = min(2 * self._pause, self._longest_pause)
        self._is_tried = False
        self._open_until = self._clock() + self._pause


T = TypeVar("T")

_CLOSED = "the engine has stopped, and its connections to the store are closed"
_OLDEST = 7  # the first major version of Redis whose scripts may free memory when it is full
_MOST_MESSAGE = 200  # characters
_log = logging.getLogger(__name__)


class Lane(CircuitBreaker):
    """A class of operations on a shared store, with a limit on parallel ones and a circuit breaker of its own."""

    def __init__(self, name: str, most: int, clock: Callable[[], float]) -> None:
        """Allow `most` operations at a time. The log calls the lane `name`."""
        super().__init__(clock)
        self.name = name
        self.places = asyncio.Semaphore(most)


def lua(*names: str) -> str:
    """Return the scripts of these names in the folder `scripts`, one after the other, as one script."""
    folder = files("rnn_engine_states.shared") / "scripts"
    return "".join((folder / f"{name}.lua").read_text("utf-8") for name in names)


class StoreClient:
    """Runs coroutines that use the store on a thread of its own. `submit` and `close` are for other threads."""

    def __init__(self, url: StoreUrl, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the thread. Operations, of which the first connects, take at most `timeout` seconds."""
        self.url = url
        self._timeout = timeout
        self._counters = StoreCounters()
        self._counting_unreadable = threading.Lock()
        self.reading = Lane("reading from", 32, clock)  # what prompts wait for
        self.writing = Lane("writing to", 4, clock)
        self._lanes = (self.reading, self.writing)
        options: dict[str, Any] = {"ssl_check_hostname": True} if url.tls else {}
        # New connections don't send the library's name and version, since that would take two more round trips to the
        # store.
        options |= {"lib_name": None, "lib_version": None}
        self._valkey = Valkey(
            connection_pool=ConnectionPool.from_url(
                url.text, socket_timeout=timeout, socket_connect_timeout=timeout, **options
            )
        )
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="state-store", daemon=True)
        self._thread.start()

    def refuses(self, *, reading: bool = False) -> bool:
        """Return True if some operations, with `reading` those that prompts wait for, are rejected. Any thread."""
        return self.reading.refuses or (self.writing.refuses and not reading)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the client's thread; return its future. Raises EngineClosedError, as that does."""
        if self._closing:
            coroutine.close()
            raise EngineClosedError(_CLOSED)
        return asyncio.run_coroutine_threadsafe(self._until_closed(coroutine), self._loop)

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine by `submit`, and wait for its result on another event loop."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def counters(self) -> StoreCounters:
        """Return the client's counters since its start, including the current state of the circuit breakers."""
        return replace(
            self._counters,
            outcomes=dict(self._counters.outcomes),
            circuit_open=any(lane.is_open for lane in self._lanes),
            circuit_openings=sum(lane.openings for lane in self._lanes),
        )

    def count_bytes(self, *, read: int = 0, written: int = 0) -> None:
        """Add to the counters how many bytes of states were read from and written to the store."""
        self._counters.read_bytes += read
        self._counters.written_bytes += written

    def note_unreadable(self, what: str, reason: object) -> None:
        """Count and log a value of the store that can't be parsed and is treated as missing. For any thread.

        `what` describes the value, and `reason` the error.
        """
        with self._counting_unreadable:
            self._counters.unreadable += 1
        _log.warning(
            "a value in the store can't be read and is treated as missing: %s: %s", what, str(reason)[:_MOST_MESSAGE]
        )

    async def run(self, lane: Lane, operation: Callable[[Valkey], Awaitable[T]]) -> T:
        """Run an operation on the store in a lane, with the client's timeout, and return its result.

        For the client's thread. Raises UnavailableError if the store does not answer or the lane's circuit breaker
        rejects the operation. Raises StorageError if the store has no room, and StateError if the store rejects the
        operation.
        """
        async with lane.places:
            if not lane.allow():
                self._counters.outcomes[StoreOutcome.SKIPPED] += 1
                raise UnavailableError(f"{lane.name} the store is paused for a while, because it has failed", 1.0)
            begun = time.monotonic()
            try:
                async with asyncio.timeout(self._timeout):
                    result = await operation(self._valkey)
            except (exceptions.ValkeyError, OSError, TimeoutError) as error:
                outcome, raised = _judge(error)
                self._note_failure(lane, outcome, raised)
                raise raised from error
            finally:
                self._counters.seconds += time.monotonic() - begun
            self._note_success(lane)
            return result

    async def command(self, lane: Lane, *command: object) -> Any:  # noqa: ANN401
        """Send a command to the store by `run`, and return the store's answer."""
        return await self.run(lane, lambda valkey: valkey.execute_command(*command))  # type: ignore[no-untyped-call]

    async def script(self, lane: Lane, text: str, keys: list[str], *arguments: str | bytes | int) -> Any:  # noqa: ANN401
        """Run the Lua script `text` in the store by `run`, and return its answer. Later calls send only its hash."""
        return await self.run(lane, lambda valkey: valkey.register_script(text)(keys=keys, args=arguments))

    async def check(self) -> int | None:
        """Check that the store can be used, and return its limit of memory in bytes, or None if it has none.

        Logs a warning if there is no limit or the eviction policy is unsuitable. Raises StateError if the store denies
        access, is too old or is a cluster. Raises UnavailableError if the store can't be reached.
        """
        info: dict[str, Any] = await self.run(self.reading, lambda valkey: valkey.info())
        version, is_cluster = str(info.get("redis_version", "0")), bool(info.get("cluster_enabled"))
        if int(version.partition(".")[0]) < _OLDEST or is_cluster:
            kind = "a cluster" if is_cluster else f"Redis {version}"
            raise StateError(f"{self.url.shown} is {kind}; expected Valkey, or Redis {_OLDEST} or newer, not a cluster")
        policy, bound = str(info.get("maxmemory_policy")), int(info.get("maxmemory", 0))
        if bound == 0:
            _log.warning("%s has no maxmemory, so it may take all memory of its machine", self.url.shown)
        elif not policy.startswith("volatile-"):
            _log.warning(
                "%s has the maxmemory-policy %s; expected volatile-lru, so that only states of prompts are evicted",
                self.url.shown,
                policy,
            )
        return bound or None

    def close(self) -> None:
        """Cancel the running coroutines, close all connections and end the client's thread. Idempotent."""
        if not self._closing:
            self._closing = True
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _until_closed(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return await coroutine
        except asyncio.CancelledError:
            if self._closing:
                raise EngineClosedError(_CLOSED) from None
            raise

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._valkey.aclose(close_connection_pool=True)
        await self._loop.shutdown_default_executor()

    def _note_success(self, lane: Lane) -> None:
        self._counters.outcomes[StoreOutcome.DONE] += 1
        if lane.is_open:
            _log.info("%s %s succeeds again", lane.name, self.url.shown)
        lane.note_success()

    def _note_failure(self, lane: Lane, outcome: StoreOutcome, error: RnnEngineError) -> None:
        self._counters.outcomes[outcome] += 1
        was_open = lane.is_open
        lane.note_failure()
        if lane.is_open and not was_open:  # logged once, until an operation succeeds again
            _log.warning("%s %s fails and is paused for a while: %s", lane.name, self.url.shown, error)


def _judge(error: Exception) -> tuple[StoreOutcome, RnnEngineError]:
    """Translate an exception of the store's client library into an outcome to count and an exception to raise."""
    if isinstance(error, exceptions.OutOfMemoryError):
        return StoreOutcome.NO_ROOM, StorageError("the store has no room: its maxmemory is used up")
    if isinstance(error, TimeoutError | exceptions.TimeoutError):
        return StoreOutcome.TIMED_OUT, UnavailableError("the store does not answer in time", 1.0)
    text = str(error)[:_MOST_MESSAGE] or type(error).__name__
    if isinstance(error, exceptions.AuthenticationError | exceptions.ResponseError):
        return StoreOutcome.FAILED, StateError(f"the store refuses the command: {text}")
    return StoreOutcome.FAILED, UnavailableError(f"the store can't be reached: {text}", 1.0)
