"""Run batches beside other requests: each key's one after another, below what their clients wait for.

A line is sent to the handler of its HTTP route, so it can do what a request can do. All batches of an API key are one
client of the engine in the background. So a request of any other client gets a slot before a line of a batch, takes one
from a line that runs, and is hardly slower beside it; and the batches of two keys share what is left by the keys'
weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextvars import Context
from pathlib import Path
from typing import Any
from uuid import uuid4

from rnn_engine.errors import RnnEngineError
from rnn_engine.requests import Client
from server.auth.keys import Principal
from server.auth.rates import UNBOUNDED
from server.core.bodies import on_thread, to_json
from server.core.inner import InnerAnswer, InnerCalls
from server.core.settings import Limits
from server.jobs.batches import Batch, BatchStatus, BatchStore
from server.jobs.lines import BatchError, Journal, LinePlace, check_lines, order_lines, read_line, skip_lines

_MOST_AHEAD = 32  # lines that wait for a slot
_RETRY_SECONDS = 5.0  # after which a line is tried again if the answer does not say, and a full disk is tried again
_AGAIN = (429, 503)  # statuses of answers after which a request may be sent again
_EXPIRED = "the completion window of the batch ended before this request was run"
_log = logging.getLogger(__name__)


class BatchRunner:
    """Runs the batches of a store on the routes of a server, each owner's one at a time. For the event loop."""

    def __init__(
        self,
        store: BatchStore,
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
        self._is_closed = False

    def wake(self, owner: str) -> None:
        """Run the owner's unfinished batches, unless that is being done."""
        task = self._tasks.get(owner)
        if not self._is_closed and (task is None or task.done()):
            self._tasks[owner] = asyncio.create_task(self._run_all(owner), context=Context())

    def wake_all(self) -> None:
        """Run all unfinished batches, as after a start."""
        for owner in {batch.owner for batch in self._store.unfinished()}:
            self.wake(owner)

    async def cancel(self, batch: Batch) -> Batch:
        """Cancel a batch unless it has ended, and return it as it is then. Its lines that run end soon afterwards.

        Raises StorageError.
        """
        changed = await asyncio.to_thread(self._store.enter, batch.id, "cancelling")
        if (stop := self._running.get(batch.id)) is not None:
            stop.set()
        elif changed.status == "cancelling":
            self._running[batch.id] = asyncio.Event()
            try:
                changed = await asyncio.to_thread(self._store.finish, batch.id)
            finally:
                del self._running[batch.id]
        return changed

    async def close(self) -> None:
        """Stop the lines that run. They are run again after the next start."""
        self._is_closed = True
        await _end(*self._tasks.values())

    async def _run_all(self, owner: str) -> None:
        tried = set[str]()
        while (batch := self._next(owner, tried)) is not None:
            tried.add(batch.id)
            stop = self._running[batch.id] = asyncio.Event()
            try:
                await self._run(batch, stop)
            except RnnEngineError as error:  # such as a full disk; it is tried again after the next start
                _log.warning("batch %s has stopped: %s", batch.id, error)
            except Exception:
                _log.exception("batch %s has stopped", batch.id)
            finally:
                del self._running[batch.id]
        self._tasks.pop(owner, None)

    def _next(self, owner: str, tried: Collection[str]) -> Batch | None:
        """Return the owner's oldest unfinished batch that is not running and was not tried."""
        batches = self._store.unfinished(owner)
        return next((each for each in batches if each.id not in tried and each.id not in self._running), None)

    async def _run(self, batch: Batch, stop: asyncio.Event) -> None:
        """Take a batch from the state that it is in to its end."""
        if batch.status == "validating":
            batch = await self._check(batch)
        if batch.status == "in_progress" and not stop.is_set():
            principal = self._find_principal(batch.owner)
            if principal is None:
                error = BatchError("key_removed", f"the API key {batch.owner!r} is no longer one of this server")
                await asyncio.to_thread(self._store.enter, batch.id, "finalizing", errors=(error,), ends_as="failed")
            else:
                is_whole = await self._run_lines(batch, principal, stop)
                ending: BatchStatus = "completed" if is_whole else "expired"
                await asyncio.to_thread(self._store.enter, batch.id, "finalizing", ends_as=ending)
        if not self._store.get(batch.owner, batch.id).has_ended:
            await asyncio.to_thread(self._store.finish, batch.id)

    async def _check(self, batch: Batch) -> Batch:
        route = self._calls.route(batch.endpoint)
        assert route is not None, batch.endpoint
        path = await asyncio.to_thread(self._path, batch)
        found = await asyncio.to_thread(check_lines, path, route, self._limits, strict=self._strict)
        if found.errors:
            return await asyncio.to_thread(self._store.enter, batch.id, "failed", errors=tuple(found.errors))
        return await asyncio.to_thread(self._store.enter, batch.id, "in_progress", total=found.total)

    async def _run_lines(self, batch: Batch, principal: Principal, stop: asyncio.Event) -> bool:
        """Run the lines of a batch that are not done, until `stop` is set. Return False if its window has ended."""
        path = await asyncio.to_thread(self._path, batch)
        async with on_thread(self._store.journal(batch)) as journal:
            places = await asyncio.to_thread(order_lines, path, batch.endpoint, self._limits, journal.done)
            lines = _BatchLines(batch, principal, self._calls, path, iter(places), journal)
            slots = self._num_slots()
            working = asyncio.create_task(lines.run(slots + min(slots, _MOST_AHEAD)))
            stopping = asyncio.create_task(stop.wait())
            try:
                seconds = max(batch.expires - self._store.files.now(), 0.0)
                await asyncio.wait((working, stopping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _end(working, stopping)
            if not working.cancelled():
                working.result()
            if stop.is_set() or len(journal.done) == batch.total:
                return True
            await asyncio.to_thread(skip_lines, path, batch.endpoint, self._limits, journal, "batch_expired", _EXPIRED)
            return False

    def _path(self, batch: Batch) -> Path:
        """Return the path of the batch's file. Raises NotFoundError if it is gone."""
        return self._store.files.content_path(self._store.files.get(batch.owner, batch.input_file_id))


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
        self._url = batch.endpoint
        self._principal = Principal(principal.name, principal.scope, principal.weight, UNBOUNDED)
        name = f"{principal.name} batches"  # no key's name has a space
        self._client = Client(name, principal.weight, is_background=True)
        self._calls = calls
        self._path = path
        self._places = places
        self._journal = journal

    async def run(self, num_tasks: int) -> None:
        """Run all lines, `num_tasks` at a time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(num_tasks):
                group.create_task(self._run_each())

    async def _run_each(self) -> None:
        for place in self._places:
            custom_id, body = await asyncio.to_thread(self._read, place)
            request_id = uuid4().hex
            answer = await self._answer(body, request_id)
            await self._write(custom_id, request_id, answer)

    def _read(self, place: LinePlace) -> tuple[str, bytes]:
        """Return the `custom_id` and the body of a line. Raises OSError."""
        line = read_line(self._path, place, self._url)
        return line.custom_id, to_json(line.body)

    async def _answer(self, body: bytes, request_id: str) -> InnerAnswer:
        """Send the body of a line until the answer is not that it must be sent again."""
        while True:
            answer = await self._calls.post(self._url, body, self._principal, self._client, request_id)
            if answer.status not in _AGAIN:
                return answer
            await asyncio.sleep(float(answer.headers.get("Retry-After", _RETRY_SECONDS)))

    async def _write(self, custom_id: str, request_id: str, answer: InnerAnswer) -> None:
        """Write the answer to a line, again and again until the disk has room for it."""
        while True:
            try:
                self._journal.add_answer(custom_id, request_id, answer.status, answer.body)
                return
            except OSError as error:
                _log.warning("%s: an answer can't be written yet: %s", self._client.name, error.strerror)
            await asyncio.sleep(_RETRY_SECONDS)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
