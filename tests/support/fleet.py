"""Replicas in this process. They and the front exchange the same bytes that Ray would carry."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import Context
from dataclasses import replace
from typing import TypeVar

import psutil

from rnn_engine.fleet.remote import Front, RemoteEngine
from rnn_engine.fleet.replica import Replica, ReplicaEngine
from rnn_engine.fleet.wire import NOTHING_KNOWN, ReplicaLostError, Report
from rnn_engine.interface import EngineLike
from tests.support.fake_engine import FakeEngine

T = TypeVar("T")


class LocalLinks:
    """The `Links` to replicas of this process, which tests can kill."""

    def __init__(self, engines: Mapping[str, ReplicaEngine]) -> None:
        self.calls: list[str] = []  # the replicas that requests went to
        self.parcels_sent = 0
        self.one_hangs = False  # so that no survey is answered
        self.unanswered = 0
        self.engines = dict(engines)
        self.hidden: set[str] = set()  # replicas that take no more requests
        self._replicas: dict[str, Replica] = {}
        self._killed: dict[str, asyncio.Event] = {}
        self._broken: dict[str, asyncio.Event] = {}  # set when a replica's streams break off
        for name, engine in engines.items():
            self.add(name, engine)

    def add(self, name: str, engine: ReplicaEngine) -> None:
        """Add a replica, which closes the engine at its end."""
        self._replicas[name] = Replica(engine, name)
        self._killed[name] = asyncio.Event()
        self._broken[name] = asyncio.Event()

    async def survey(self, known: Mapping[str, int] = NOTHING_KNOWN) -> Sequence[Report] | None:
        if self.one_hangs:
            self.unanswered += 1
            return None
        living = [replica for name, replica in self._replicas.items() if name not in self.hidden]
        return [pickle.loads(await replica.report(known)) for replica in living]

    async def run(self, replica: str, front: str, key: int, call: bytes) -> None:
        self.calls.append(replica)
        work = self._replica(replica).run(front, key, call)
        running = asyncio.create_task(work, context=Context())  # another process does not have the sender's context
        try:
            await _unless_lost(replica, self._killed[replica], running)
        finally:
            running.cancel()

    async def parcels(self, replica: str, front: str) -> AsyncGenerator[bytes]:
        broken = self._broken[replica]
        async with aclosing(self._replica(replica).parcels(front)) as parcels:
            while True:
                waiting = asyncio.ensure_future(anext(parcels))
                try:
                    parcel = await _unless_lost(replica, broken, waiting)
                    self.parcels_sent += 1
                    yield parcel
                finally:
                    if not waiting.done():
                        waiting.cancel()
                        await asyncio.wait((waiting,))

    async def hold(self, replica: str, front: str, key: int, held: bool) -> None:
        await self._replica(replica).hold(front, key, held)

    async def ask(self, replica: str, question: bytes) -> bytes:
        return await self._replica(replica).ask(question)

    async def close(self) -> None:
        for replica in self._replicas.values():
            await replica.close()

    def break_streams(self, name: str) -> None:
        """Break off the streams of a replica's outcomes. The replica goes on running."""
        self._broken[name].set()
        self._broken[name] = asyncio.Event()

    async def kill(self, name: str) -> None:
        """End a replica at once, as SIGKILL does."""
        replica = self._replicas.pop(name)
        self._killed[name].set()
        self._broken[name].set()
        await asyncio.sleep(0)
        await replica.close()

    def _replica(self, name: str) -> Replica:
        if name not in self._replicas:
            raise ReplicaLostError(name, "it was killed")
        return self._replicas[name]


async def _unless_lost(name: str, lost: asyncio.Event, work: asyncio.Future[T]) -> T:
    """Return the result of `work`. Raises ReplicaLostError as soon as `lost` is set."""
    losing = asyncio.create_task(lost.wait())
    try:
        await asyncio.wait((work, losing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        losing.cancel()
    if lost.is_set():
        raise ReplicaLostError(name, "it was killed or its stream broke off")
    return work.result()


class EngineTokenizer:
    """The tokenizer of an engine, made of the engine's own methods."""

    def __init__(self, engine: EngineLike) -> None:
        self.name = engine.info.tokenizer
        self.size = engine.info.shape.vocab_size
        self.special_tokens = engine.info.special_tokens
        self.encode = engine.tokenize
        self._engine = engine

    def decode_bytes(self, token: int) -> bytes:
        return self._engine.detokenize([token])


def front_of(engine: EngineLike) -> Front:
    """Return the server process's part of a fleet for an engine's model."""
    info = engine.info
    return Front(EngineTokenizer(engine), info.chat_template, engine.states, engine.state_files, info.folders)


async def local_fleet(engines: Mapping[str, ReplicaEngine], max_queued: int = 64) -> tuple[RemoteEngine, LocalLinks]:
    """Return a fleet over engines of this process, and the links to them. The first engine has the named states."""
    links, first = LocalLinks(engines), next(iter(engines.values()))
    front = front_of(first)
    if isinstance(first, FakeEngine):
        front = replace(front, on_forgotten=first.named.on_forgotten)
    return await RemoteEngine.open(links, front, max_queued=max_queued), links


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` is true. Raises TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def replica_processes(application: str) -> list[psutil.Process]:
    """Return the processes of an application's replicas on the Ray cluster that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] and f"ServeReplica:{application}:" in process.cmdline()[0]:
                found.append(process)
    return found
