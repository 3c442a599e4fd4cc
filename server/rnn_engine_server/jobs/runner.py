"""Run batches beside other requests: each key's one after another, below what their clients wait for.

A line is a call of its route, so it can do what a request can do. All batches of an API key are one
client of the engine in the background. So a request of any other client gets a slot before a line of a batch, takes one
from a line that runs, and is hardly slower beside it. The batches of two keys share the other slots by the keys'
weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context
from functools import partial
from pathlib import Path
from uuid import uuid4

from rnn_engine.errors import InvalidRequestError, NotFoundError, RnnEngineError, StorageError
from rnn_engine.requests import Client
from rnn_engine_server.auth.keys import UNBOUNDED, Principal
from rnn_engine_server.core.call import SHORT_WORK
from rnn_engine_server.core.performing import InnerAnswer, InnerCalls
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.core.tasks import cancel_tasks, run_whole, uninterrupted
from rnn_engine_server.jobs.lines import (
    BatchError,
    Journal,
    Line,
    LinePlace,
    check_lines,
    order_lines,
    read_lines,
    skip_lines,
)
from rnn_engine_server.store.batches import Batch, Batches, BatchStatus

_MOST_AHEAD = 32  # lines that wait for a slot
_READ_LINES, _READ_BYTES = 64, 1 << 20  # that are read at a time
_RETRY_SECONDS = 5.0  # after which a full disk is tried again
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 300.0  # seconds of a batch that a fault has stopped; each is twice the one before
_EXPIRED = "the completion window of the batch ended before this request was run"
_log = logging.getLogger(__name__)


class BatchRunner:
    """Runs the batches of a store on the routes of a server, each owner's one at a time. For the event loop."""

    def __init__(
        self,
        store: Batches,
        calls: InnerCalls,
        find_principal: Callable[[str], Principal | None],
        num_slots: Callable[[], int],
        limits: Limits,
        *,
        strict: bool,
    ) -> None:
        """Prepare to run batches. `find_principal` returns the owner of a name; None if its key is gone.

        `num_slots` returns how many sequences the engine runs at a time. With `strict`, unknown fields of lines are
        refused.
        """
        self._store = store
        self._calls = calls
        self._find_principal = find_principal
        self._num_slots = num_slots
        self._limits = limits
        self._strict = strict
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by owner
        self._running: dict[str, asyncio.Event] = {}  # batch -> set when it is cancelled
        self._pausing: dict[str, asyncio.Event] = {}  # owner -> set to look for its batches again
        self._woken = set[str]()  # owners that may have batches which were not seen yet
        self._is_closed = False

    @uninterrupted
    async def begin(self, create: Callable[[], Awaitable[Batch]]) -> Batch:
        """Call `create`, which stores a batch, and run the batch."""
        batch = await create()
        self.wake(batch.owner)
        return batch

    def wake(self, owner: str) -> None:
        """Run the owner's unfinished batches, unless that is being done."""
        self._woken.add(owner)
        if (pausing := self._pausing.get(owner)) is not None:
            pausing.set()
        task = self._tasks.get(owner)
        if not self._is_closed and (task is None or task.done()):
            self._tasks[owner] = asyncio.create_task(self._run_all(owner), context=Context())

    async def wake_all(self) -> None:
        """Run all unfinished batches, as after a start."""
        for owner in {batch.owner for batch in await self._store.unfinished()}:
            self.wake(owner)

    @uninterrupted
    async def cancel(self, batch: Batch) -> Batch:
        """Cancel a batch unless it has ended, and return it as it is then. Its lines that run end soon afterwards.

        Raises StorageError.
        """
        changed = await self._store.enter(batch, "cancelling")
        if (stop := self._running.get(batch.id)) is not None:
            stop.set()
        elif changed.status == "cancelling":
            self._running[batch.id] = asyncio.Event()
            try:
                changed = await self._store.finish(batch.id)
            finally:
                del self._running[batch.id]
                self.wake(batch.owner)  # it did not see the batch meanwhile
        return changed

    async def close(self) -> None:
        """Stop the lines that run. They are run again after the next start."""
        self._is_closed = True
        await cancel_tasks(*self._tasks.values())

    async def _run_all(self, owner: str) -> None:
        """Run the owner's batches, the oldest first, until all have ended.

        One that a fault of the server stops goes on after a pause, in which others run.
        """
        now = asyncio.get_running_loop().time
        pauses = dict[str, float]()  # stopped batch -> seconds of its last pause
        resumes = dict[str, float]()  # stopped batch -> when its pause ends, by the loop's clock
        while (waiting := await self._waiting(owner)) or owner in self._woken:
            if not waiting:
                continue
            moment = now()
            waits = [max(resumes.get(each.id, 0.0) - moment, 0.0) for each in waiting]
            if (seconds := min(waits)) > 0.0:
                await self._pause(owner, seconds)
                continue
            batch = waiting[waits.index(0.0)]
            stop = self._running[batch.id] = asyncio.Event()
            try:
                await self._run(batch, stop)
            except Exception as error:
                seconds = pauses[batch.id] = min(2 * pauses.get(batch.id, _FIRST_PAUSE / 2), _LONGEST_PAUSE)
                resumes[batch.id] = now() + seconds
                self._store.num_stops += 1
                is_known = isinstance(error, RnnEngineError)  # such as a full disk
                _log.warning(
                    "batch %s has stopped, and goes on in %g s: %s", batch.id, seconds, error, exc_info=not is_known
                )
            finally:
                del self._running[batch.id]
        self._tasks.pop(owner, None)

    async def _waiting(self, owner: str) -> list[Batch]:
        while True:
            self._woken.discard(owner)
            try:
                return [each for each in await self._store.unfinished(owner) if each.id not in self._running]
            except StorageError as error:
                _log.warning("the batches of %r are looked for again in %g s: %s", owner, _FIRST_PAUSE, error)
            await self._pause(owner, _FIRST_PAUSE)

    async def _pause(self, owner: str, seconds: float) -> None:
        """Wait for `seconds`, or until `wake` is called for the owner."""
        woken = self._pausing[owner] = asyncio.Event()
        try:
            await asyncio.wait_for(woken.wait(), seconds)
        except TimeoutError:
            pass
        finally:
            del self._pausing[owner]

    async def _run(self, batch: Batch, stop: asyncio.Event) -> None:
        """Take a batch from the state that it is in to its end."""
        try:
            path = await self._store.files.content(batch.owner, batch.input_file_id)
        except NotFoundError as error:
            await self._fail(batch, BatchError("file_missing", str(error)))
        else:
            if batch.status == "validating":
                batch = await self._check(batch, path)
            if batch.status == "in_progress" and not stop.is_set():
                await self._finish_lines(batch, path, stop)
        if not (await self._store.get(None, batch.id)).has_ended:
            await self._store.finish(batch.id)

    async def _finish_lines(self, batch: Batch, path: Path, stop: asyncio.Event) -> None:
        """Run the lines of a batch, and let it enter the state that follows."""
        principal = self._find_principal(batch.owner)
        if principal is None:
            message = f"the API key {batch.owner!r} is no longer one of this server"
            await self._fail(batch, BatchError("key_removed", message))
            return
        ending: BatchStatus = "completed" if await self._run_lines(batch, path, principal, stop) else "expired"
        await self._store.enter(batch, "finalizing", ends_as=ending)

    async def _fail(self, batch: Batch, error: BatchError) -> None:
        """Let a batch that can't go on fail. The answers that it has are kept."""
        status: BatchStatus = "failed" if batch.status == "validating" else "finalizing"
        await self._store.enter(batch, status, errors=(error,), ends_as="failed")

    async def _check(self, batch: Batch, path: Path) -> Batch:
        route = self._calls.route(batch.endpoint)
        found = await asyncio.to_thread(check_lines, path, route, self._limits, strict=self._strict)
        if found.errors:
            return await self._store.enter(batch, "failed", errors=tuple(found.errors))
        return await self._store.enter(batch, "in_progress", total=found.total)

    async def _run_lines(self, batch: Batch, path: Path, principal: Principal, stop: asyncio.Event) -> bool:
        """Run the lines of a batch that are not done, until `stop` is set. Return False if its window has ended."""
        async with self._store.journal(batch) as journal:
            places = await asyncio.to_thread(order_lines, path, batch.endpoint, self._limits, journal.done)
            lines = _BatchLines(batch, principal, self._calls, path, iter(places), journal)
            slots = self._num_slots()
            working = asyncio.create_task(lines.run(slots + min(slots, _MOST_AHEAD)))
            stopping = asyncio.create_task(stop.wait())
            try:
                seconds = max(batch.expires - self._store.files.now(), 0.0)
                await asyncio.wait((working, stopping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_tasks(working, stopping)
            if not working.cancelled():
                working.result()
            if stop.is_set() or len(journal.done) == batch.total:
                return True
            if not working.cancelled():
                raise RuntimeError("lines were cancelled before the end of the window")
            await asyncio.to_thread(skip_lines, path, batch.endpoint, self._limits, journal, "batch_expired", _EXPIRED)
            return False


class _BatchLines:
    """Runs the lines of one batch. Several tasks may call `run`."""

    def __init__(
        self,
        batch: Batch,
        principal: Principal,
        calls: InnerCalls,
        path: Path,
        places: Iterator[LinePlace],
        journal: Journal,
    ) -> None:
        self._route = calls.route(batch.endpoint)
        # the lines count against no rate of the key: they run in the background, and their number is bounded
        self._principal = Principal(principal.name, principal.scope, principal.weight, UNBOUNDED)
        name = f"{principal.name} batches"  # no key's name has a space
        self._client = Client(name, principal.weight, is_background=True)
        self._calls = calls
        self._path = path
        self._places = places
        self._journal = journal
        self._lines = deque[tuple[Line, int]]()  # those that were read and are not run yet, with their bytes in memory
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()

    async def run(self, num_tasks: int) -> None:
        """Run all lines, `num_tasks` at a time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(num_tasks):
                group.create_task(self._run_each())

    async def _run_each(self) -> None:
        while (line := await self._next()) is not None:
            request_id = uuid4().hex
            answer = await self._answer(*line, request_id)
            await self._write(line[0].custom_id, request_id, answer)

    async def _next(self) -> tuple[Line, int] | None:
        """Return the next line to run, and its bytes in memory; None after the last one. Raises OSError."""
        async with self._reading:
            if not self._lines:
                places = self._next_places()
                self._lines.extend(await asyncio.to_thread(read_lines, self._path, places, self._route.path))
            return self._lines.popleft() if self._lines else None

    def _next_places(self) -> list[LinePlace]:
        """Return the places of the lines to read together."""
        places, num_bytes = list[LinePlace](), 0
        while num_bytes < _READ_BYTES and len(places) < _READ_LINES:
            if (place := next(self._places, None)) is None:
                break
            places.append(place)
            num_bytes += place.length
        return places

    async def _answer(self, line: Line, num_bytes: int, request_id: str) -> InnerAnswer:
        """Make the call of a line until the answer is not that it must be made again."""
        assert self._route.request is not None
        parse = partial(self._route.request.from_value, line.body)
        while True:
            answer = await self._calls.ask(self._route, parse, num_bytes, self._principal, self._client, request_id)
            if answer.retry_seconds is None:
                return answer
            self._journal.note_retry()
            await asyncio.sleep(answer.retry_seconds)

    async def _write(self, custom_id: str, request_id: str, answer: InnerAnswer) -> None:
        """Write the answer to a line, again and again until the disk has room for it."""
        add = partial(self._journal.add_answer, custom_id, request_id, answer.status, answer.body, answer.usage)
        while True:
            try:
                async with self._writing:
                    return await run_whole(add) if len(answer.body) > SHORT_WORK else add()
            except (OSError, InvalidRequestError, StorageError) as error:  # a full disk, or a bound on files
                reason = error.strerror if isinstance(error, OSError) else error
                _log.warning("%s: an answer can't be written yet: %s", self._client.name, reason)
            await asyncio.sleep(_RETRY_SECONDS)
