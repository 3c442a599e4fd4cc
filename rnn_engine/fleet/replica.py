"""Run an engine as one replica of a fleet: take requests from other processes (fronts), and send back their events."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from inspect import isawaitable
from typing import Protocol

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.errors import RnnEngineError
from rnn_engine.fleet.wire import Outcome, Report, pack_answer, pack_outcomes, unpack_request
from rnn_engine.interface import EngineLike
from rnn_engine_states.cache.browse import SummaryChanges


class ReplicaEngine(EngineLike, Protocol):
    """The protocol of a replica's engine: `EngineLike`, and two more methods for its cache."""

    def forget_root(self, root: str) -> None:
        """Drop the cached states that were computed from the initial state with the digest `root`."""

    def cache_changes(self, since: int | None) -> SummaryChanges | None:
        """Return the changes since version `since` of the cache's summary, hashes of cached prompts, if it has one."""


class Replica:
    """Runs requests of server processes (fronts) on an engine, and sends each front its requests' events in one stream.

    Events of a front's requests that are ready together are sent in one parcel, so that a step costs one message for
    each front and not one for each token. For one event loop. Owns the engine.
    """

    def __init__(self, engine: ReplicaEngine, name: str) -> None:
        """Create a replica that runs requests on `engine`. No other replica may have the same `name`."""
        self.name = name
        self._engine = engine
        self._outboxes: dict[str, _Outbox] = {}  # of the fronts that read their streams

    async def run(self, front: str, key: int, call: bytes) -> None:
        """Run the pickled request `call` to its end; put its events, with its number `key`, into the stream to `front`.

        Cancelling this frees the request's slot within a step. The request ends early if the front stops reading its
        stream, and does not begin if the front reads none.
        """
        outbox = self._outboxes.get(front)
        if outbox is None:
            return
        request, wait_for_room = unpack_request(call)
        end: Outcome = None
        with outbox.reader(key) as reading:
            try:
                async with aclosing(self._engine.generate(request, wait_for_room=wait_for_room)) as events:
                    async for event in events:
                        outbox.put(key, event)
                        if not reading.is_set():
                            await reading.wait()
                        if outbox.is_closed:
                            return
            except RnnEngineError as error:
                end = error
        outbox.put(key, end)

    async def parcels(self, front: str) -> AsyncGenerator[bytes]:
        """Yield pickled lists of a front's events, first an empty one. Its requests end when nobody reads on."""
        outbox = self._outboxes[front] = _Outbox()
        try:
            yield pack_outcomes([])
            while True:
                yield pack_outcomes(await outbox.take())
        finally:
            outbox.close()
            if self._outboxes[front] is outbox:  # else the front has begun another stream
                del self._outboxes[front]

    async def hold(self, front: str, key: int, held: bool) -> None:
        """Pause (`held`) or resume reading a request's events. Does nothing for a request that has ended."""
        outbox = self._outboxes.get(front)
        if outbox is not None:
            outbox.hold(key, held)

    async def report(self, known: Mapping[str, int]) -> bytes:
        """Return a pickled `Report`, with the changes of the cache's summary since the version in `known`."""
        engine = self._engine
        info = replace(engine.info, folders={}, chat_template=WorldTemplate())
        slots = tuple(engine.slot_uses())
        report = Report(
            self.name,
            info,
            engine.stats(),
            engine.health(),
            engine.counters(),
            engine.cache_stats(),
            slots,
            engine.cache_changes(known.get(self.name)),
        )
        return pickle.dumps(report)

    async def ask(self, question: bytes) -> bytes:
        """Call the engine's method that a pickled `question` names; return its result or error, pickled."""
        method, args, named = pickle.loads(question)
        try:
            answer = getattr(self._engine, method)(*args, **named)
            return pack_answer(await answer if isawaitable(answer) else answer, None)
        except RnnEngineError as error:
            return pack_answer(None, error)

    async def close(self) -> None:
        await self._engine.close()


class _Outbox:
    """The queue of events that wait to be sent to one server process, and the pauses of that process's requests."""

    def __init__(self) -> None:
        self.is_closed = False  # True: nobody reads the outcomes any more
        self._outcomes: list[tuple[int, Outcome]] = []
        self._any = asyncio.Event()
        self._reading: dict[int, asyncio.Event] = {}  # by request; set unless its reader is far behind

    @contextmanager
    def reader(self, key: int) -> Iterator[asyncio.Event]:
        """While the `with` block runs, let `hold` pause the request `key`; the event yielded is set unless paused."""
        reading = self._reading[key] = asyncio.Event()
        reading.set()
        try:
            yield reading
        finally:
            del self._reading[key]

    def hold(self, key: int, held: bool) -> None:
        """Pause the request `key` if `held`, else resume it. Does nothing for a request that has ended."""
        reading = self._reading.get(key)
        if reading is None:
            return
        if held:
            reading.clear()
        else:
            reading.set()

    def put(self, key: int, outcome: Outcome) -> None:
        self._outcomes.append((key, outcome))
        self._any.set()

    async def take(self) -> list[tuple[int, Outcome]]:
        """Wait until there is an event or error to send; then remove and return all, with their requests' keys."""
        await self._any.wait()
        await asyncio.sleep(0)  # meanwhile, other requests of the same step put theirs
        self._any.clear()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def close(self) -> None:
        """Mark the queue as closed, and resume the paused requests, so that all of them see it."""
        self.is_closed = True
        for reading in self._reading.values():
            reading.set()
