"""Responses in the background: stored before they are run, so that they outlast their request and the process.

A response is run by a call of its own route, as a stream. The events of the stream are appended to a log, a blob from
which any number of clients read them, also later. After a restart, what had not ended is run again, with the same seed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from rnn_engine.errors import InvalidRequestError, NotFoundError, StorageError
from rnn_engine.files import append
from rnn_engine.requests import Client
from rnn_engine_server.auth.keys import Principal
from rnn_engine_server.core.bodies import storage_errors, to_json
from rnn_engine_server.core.call import Call, parsed_bytes
from rnn_engine_server.core.handlers import SSE, TYPED_SSE, Event, Piece, Stream
from rnn_engine_server.core.performing import InnerCalls
from rnn_engine_server.core.routing import AppKey
from rnn_engine_server.core.tasks import cancel_tasks, uninterrupted
from rnn_engine_server.store.histories import EVENTS
from rnn_engine_server.store.responses import Responses, StoredResponse
from rnn_engine_server.store.turns import History, StoredItem

PATH = "/v1/responses"

_SEED_BITS = 63
_RETRY_SECONDS = 5.0  # after which a full disk is tried again
_FAILURE = "the events of the response can't be written to the folder of jobs"
_PIECE_BYTES = 1 << 20  # of events, read at a time
_END = b"\n\n"  # of an event
_log = logging.getLogger(__name__)


def new_seed() -> int:
    """Return a random seed, for a response that may have to be run again."""
    return secrets.randbits(_SEED_BITS)


class BackgroundRun:
    """The run of one response, which is the origin of the call that the handler answers.

    A run after a restart repeats the answer, but perhaps in other pieces. So its events go on in the middle of a piece.
    """

    def __init__(self, queued: Mapping[str, Any], log: Path | None, is_closing: Callable[[], bool]) -> None:
        """Go on with the log of events that a former run has left, or begin one; None = events are not kept.

        Blocks for the disk. Raises OSError.
        """
        self.queued = queued  # the response before it begins
        self.has_begun = False
        self.num_events = 0
        self.num_bytes = 0  # of the events
        self.changed = asyncio.Event()  # set, and replaced, when there are more events; set at the end
        self.task: asyncio.Task[None] | None = None
        self._is_closing = is_closing
        self._logged = Counter[tuple[object, ...]]()  # by kind and item, what the present run has not repeated yet
        self._log = None if log is None else log.open("ab+", buffering=0)
        if self._log is not None:
            self._read_log(self._log)
        for kind in ("response.created", "response.queued")[self.num_events :]:
            self._add_one(kind, self.queued)
        self._logged["response.created", None] = 1  # with which a run begins

    @property
    def key(self) -> str:
        """The part of the response's id that the ids of its items have, too."""
        return str(self.queued["id"]).removeprefix("resp_")

    def add(self, events: Iterable[Event]) -> None:
        """Append events of the running response, but no failure of a server that stops. Raises OSError.

        They are numbered anew, without what the log of a former run has of them.
        """
        self.has_begun = True
        for event in events:
            assert isinstance(event, Mapping)
            is_left_out = event["type"] == "response.failed" and self._is_closing()
            if not is_left_out and (news := self._unlogged(event)) is not None:
                self._write(news)

    def _unlogged(self, event: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what of an event is not in the log yet, None if nothing is."""
        place = event["type"], event.get("output_index")
        if not self._logged[place]:
            return event
        if "delta" not in event:
            self._logged[place] -= 1
            return None
        left, parts = dict(event), [name for name in ("delta", "logprobs") if name in event]
        for name in parts:  # the text is repeated, and so are its log-probabilities, but perhaps in other pieces
            left[name] = event[name][self._logged[*place, name] :]
            self._logged[*place, name] -= len(event[name]) - len(left[name])
        if not any(self._logged[*place, name] for name in parts):
            self._logged[place] = 0
        return left if any(left[name] for name in parts) else None

    def fail(self, code: str, message: str, *, is_reported: bool = False) -> Mapping[str, Any]:
        """Return the response as one that has failed, after appending the event for it unless it `is_reported`."""
        failed = {**self.queued, "status": "failed", "error": {"code": code, "message": message}}
        with suppress(OSError):  # that may be why it has failed
            if not is_reported:
                self._add_one("response.failed", failed)
        return failed

    def end(self) -> None:
        """Close the log of events, and wake those who wait for more."""
        if self._log is not None:
            self._log.close()
        self.changed.set()

    def _read_log(self, log: IO[bytes]) -> None:
        """Count what is in the log. What a crash has left of an event is cut off, and a damaged log is begun anew."""
        log.seek(0)
        events = log.read().split(_END)[:-1]
        try:
            for event in events:
                told = from_json(event.partition(b"\ndata: ")[2])
                place = told["type"], told.get("output_index")
                self._logged[place] += 1
                for name in ("delta", "logprobs"):
                    self._logged[*place, name] += len(told.get(name) or ())
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("the events of %s are written anew: %s", self.queued["id"], error)
            events = []
            self._logged.clear()
        self.num_events, self.num_bytes = len(events), sum(len(event) + len(_END) for event in events)
        log.truncate(self.num_bytes)

    def _add_one(self, kind: str, response: Mapping[str, Any]) -> None:
        self._write({"type": kind, "response": response})

    def _write(self, event: Mapping[str, Any]) -> None:
        data = TYPED_SSE.encode([{**event, "sequence_number": self.num_events}])
        self.num_events += 1
        if self._log is not None:
            append(self._log, data)
            self.num_bytes += len(data)
        self.changed.set()
        self.changed = asyncio.Event()


class BackgroundRunner:
    """Runs the responses of a store that have not ended. For the event loop."""

    def __init__(
        self,
        responses: Responses,
        calls: InnerCalls,
        find_principal: Callable[[str], Principal | None],
        is_closing: Callable[[], bool],
        max_seconds: float,
    ) -> None:
        """Prepare to run responses, each for `max_seconds` at most, with all its delays.

        `find_principal` returns the owner of a name; None if its key is gone. Responses that fail while `is_closing`
        returns True are run again after the next start.
        """
        self._responses = responses
        self._calls = calls
        self._find_principal = find_principal
        self._is_closing = is_closing
        self._max_seconds = max_seconds
        self._runs: dict[str, BackgroundRun] = {}  # by response
        self._queueing: dict[object, asyncio.Event] = {}  # response -> set when it runs

    @uninterrupted
    async def queue(
        self,
        owner: str,
        response: Mapping[str, Any],
        given: Sequence[StoredItem],
        before: History,
        body: bytes | bytearray,
        fields: Mapping[str, object],
        *,
        with_events: bool,
    ) -> StoredResponse:
        """Store a response that has not begun, with the request for it, and run it.

        `given` are the items of the request, and `before` is the conversation up to then. The request is the JSON
        object `body` with `fields` in place of its own. Raises OverloadedError if the owner may have no more of them,
        and StorageError.
        """
        request = await asyncio.to_thread(lambda: to_json({**from_json(body), **fields}))
        done = self._queueing[response["id"]] = asyncio.Event()
        try:
            queued = await self._responses.queue(owner, response, given, before, request, with_events=with_events)
            try:
                await self._start(queued)
            except BaseException:
                await self._responses.delete(owner, queued.id)
                raise
        finally:
            del self._queueing[response["id"]]
            done.set()
        return queued

    async def start_all(self) -> None:
        """Run all responses that have not ended, as after a start."""
        for response in await self._responses.unfinished():
            try:
                await self._start(response)
            except (StorageError, NotFoundError) as error:
                _log.warning("%s is not run before the next start: %s", response.id, error)
            except Exception as error:
                _log.exception("%s fails, since it is damaged", response.id)
                failure = {"code": "server_error", "message": f"what is stored of it is damaged: {error}"}
                failed = {"id": response.id, "object": "response", "created_at": int(response.created)}
                failed |= {"background": True, "status": "failed", "error": failure, "output": []}
                with suppress(StorageError):
                    await self._responses.finish(failed, 0, frees=True)

    def find(self, response_id: str) -> BackgroundRun | None:
        """Return the run of a response, or None if it does not run."""
        return self._runs.get(response_id)

    @uninterrupted
    async def cancel(self, response: StoredResponse) -> None:
        """Cancel a response unless it has ended. Raises StorageError."""
        run = await self._stop(response)
        if not response.has_ended:
            queued, _ = await self._responses.queued(response)
            cancelled = {**from_json(queued), "output": [], "status": "cancelled"}
            await self._responses.finish(cancelled, 0 if run is None else run.num_bytes, frees=True)

    @uninterrupted
    async def delete(self, response: StoredResponse) -> None:
        """Delete a response, which runs no longer. Raises NotFoundError if it is gone, and StorageError."""
        await self._stop(response)
        await self._responses.delete(response.owner, response.id)

    async def finish(self, run: BackgroundRun, response: Mapping[str, Any]) -> None:
        """Store how a response has ended, unless that was done. Waits until the disk has room for it."""
        while True:
            try:
                return await self._responses.finish(response, run.num_bytes)
            except StorageError as error:
                _log.warning("%s can't be stored yet: %s", response["id"], error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def events(self, response: StoredResponse) -> AsyncGenerator[bytes, None]:
        """Yield the encoded events of a response in pieces, also those that are still to come.

        Raises StorageError, and NotFoundError if they are gone.
        """
        with await asyncio.to_thread(self._responses.room.blobs.open, f"{response.id}.{EVENTS}") as file:
            while True:
                run = self.find(response.id)
                changed = None if run is None else run.changed
                if data := await asyncio.to_thread(file.read, _PIECE_BYTES):
                    yield data
                elif changed is None:
                    return
                else:
                    await changed.wait()

    async def close(self) -> None:
        """Stop the responses that run. They are run again after the next start."""
        await cancel_tasks(*(run.task for run in self._runs.values() if run.task is not None))

    async def _stop(self, response: StoredResponse) -> BackgroundRun | None:
        """Stop the run of a response, and return it; None if there is none."""
        if (queueing := self._queueing.get(response.id)) is not None:
            await queueing.wait()
        if (run := self._runs.get(response.id)) is not None:
            assert run.task is not None
            await cancel_tasks(run.task)
        return run

    async def _start(self, response: StoredResponse) -> None:
        queued, body = await self._responses.queued(response)

        def prepare() -> BackgroundRun:
            with_events = response.events_bytes is not None
            log = self._responses.room.blobs.path(f"{response.id}.{EVENTS}") if with_events else None
            return BackgroundRun(from_json(queued), log, self._is_closing)

        with storage_errors(_FAILURE):
            run = await asyncio.to_thread(prepare)
        self._runs[response.id] = run
        run.task = asyncio.create_task(self._run(response, run, body), context=Context())

    async def _run(self, response: StoredResponse, run: BackgroundRun, body: bytes) -> None:
        try:
            await self._answer(response, run, body)
        except Exception:
            _log.exception("%s has stopped until the next start", response.id)
        finally:
            del self._runs[response.id]
            run.end()

    async def _answer(self, response: StoredResponse, run: BackgroundRun, body: bytes) -> None:
        principal = self._find_principal(response.owner)
        if principal is None:
            message = f"the API key {response.owner!r} is no longer one of this server"
            await self.finish(run, run.fail("key_removed", message))
            return

        deadline = time.monotonic() + self._max_seconds  # of all attempts together
        route, client = self._calls.route(PATH), Client(principal.name, principal.weight)
        assert route.request is not None
        num_parsed = await asyncio.to_thread(parsed_bytes, body)
        ask = partial(self._calls.ask, route, partial(route.request.parse, body), num_parsed)
        ask = partial(ask, principal, client, response.id, deadline=deadline, origin=run, take=run.add)
        while (answer := await ask()).retry_seconds is not None:
            left = deadline - time.monotonic()
            if left <= 0 and not self._is_closing():
                break
            await asyncio.sleep(min(answer.retry_seconds, max(left, 0.0)))
        if (failure := answer.failure) is not None and not self._is_closing():
            failed = run.fail(failure.code or failure.type, failure.message, is_reported=answer.status == 200)
            await self.finish(run, failed)


BACKGROUND = AppKey("background", BackgroundRunner)


def stream_events(call: Call, response: StoredResponse, first: int) -> Stream:
    """Return the events of a response from number `first` on, until it has ended or the server stops.

    Raises InvalidRequestError if the response has no events.
    """
    if response.events_bytes is None:
        allowed = "false; only a response that was asked for with `background` and `stream` can be streamed later"
        raise InvalidRequestError("stream", "true", allowed)
    pieces = _without(first, call.app[BACKGROUND].events(response))
    return Stream(pieces, SSE, ends_with_server=True)


async def _without(skipped: int, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[Piece, None]:
    """Yield encoded events without the first `skipped` ones."""
    yield b""
    unsent = b""
    async with aclosing(pieces):
        async for piece in pieces:
            *begun, unsent = (unsent + piece).split(_END, skipped)
            skipped -= len(begun)
            if skipped == 0:
                yield unsent
                unsent = b""
