"""The measurements of a soak test: durations and errors of its operations, samples of the server, and the verdict."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import psutil
from aiohttp import ClientError, ClientSession, ClientTimeout

from tools.kill.ledger import Ledger, found_states
from tools.live_server.caller import Caller, SurpriseError
from tools.markdown import table
from tools.reliability_table import Row
from tools.soak.operations import Operation

MOST_GROWTH = 0.02
"""How much more memory the end may take than the time after the warm-up, as a part of that."""

_SLOWEST = 300.0  # seconds after which an operation counts as hanging
_READINGS = 10  # of the memory; a sample has their median, since requests come and go
_TIMEOUT = ClientTimeout(total=30)
_WINDOW = 5  # samples whose median is the memory at a time


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one successful operation: its start from the beginning of the run, and its duration, in seconds."""

    name: str
    begun: float
    seconds: float


@dataclass
class Record:
    """The operations that have ended so far."""

    timings: list[Timing] = field(default_factory=list)
    surprises: Counter[str] = field(default_factory=Counter)  # operation and error, if the error was not provoked


@dataclass
class Driver:
    """Starts `rate` operations a second on average, at moments and in an order that depend on `seed` alone.

    If `most` are running already, the next one waits, so that a slow machine gets less traffic instead of a backlog.
    """

    session: ClientSession
    url: str
    operations: Sequence[Operation]
    ledger: Ledger  # of the named states that the operations change
    rate: float
    seed: int
    most: int
    record: Record

    async def run(self, seconds: float) -> None:
        """Start operations for `seconds`, wait until all of them have ended, and check the named states."""
        moments = Random(self.seed)
        places = asyncio.Semaphore(self.most)
        begun = time.monotonic()
        number = 0
        async with asyncio.TaskGroup() as running:
            while time.monotonic() - begun < seconds:
                await asyncio.sleep(moments.expovariate(self.rate))
                await places.acquire()
                task = running.create_task(self._run_one(number, begun))
                task.add_done_callback(lambda _: places.release())
                number += 1
        found = await found_states(self._caller(number))
        own = {name: digest for name, digest in found.items() if "/" not in name}  # an admin sees the others' states
        self.record.surprises.update(self.ledger.check(own))

    async def _run_one(self, number: int, begun: float) -> None:
        caller = self._caller(number)
        [operation] = caller.random.choices(self.operations, [operation.weight for operation in self.operations])
        at = time.monotonic()
        try:
            async with asyncio.timeout(_SLOWEST):
                await operation.run(caller)
        except (SurpriseError, ClientError, OSError, TimeoutError) as error:
            self.record.surprises[f"{operation.name}: {type(error).__name__}: {error}"] += 1
            return
        self.record.timings.append(Timing(operation.name, at - begun, time.monotonic() - at))

    def _caller(self, number: int) -> Caller:
        return Caller(self.session, self.url, Random(f"{self.seed} {number}"), number)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a server and its process have at one time."""

    seconds: float
    memory: float  # bytes resident
    descriptors: int
    threads: int
    health: Mapping[str, Any]  # the answer of /health, empty if that failed

    @property
    def left(self) -> list[int]:
        """HTTP requests in progress, and those that are active and queued in the engine; -1: unknown."""
        return [self.health.get(name, -1) for name in ("requests", "active", "queued")]


@dataclass
class Sampler:
    """Samples of a server."""

    session: ClientSession
    url: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    async def run(self, interval: float) -> None:
        """Take a sample every `interval` seconds until cancelled."""
        begun = time.monotonic()
        while True:
            readings = []
            for _ in range(_READINGS):
                await asyncio.sleep(interval / _READINGS)
                readings.append(psutil.Process(self.pid).memory_info().rss)
            sample = await self.take(time.monotonic() - begun)
            self.samples.append(replace(sample, memory=statistics.median(readings)))

    async def take(self, seconds: float) -> Sample:
        """Return a sample of the server at this moment. That /health fails is reported by the operations."""
        health: Mapping[str, Any] = {}
        try:
            async with self.session.get(f"{self.url}/health", timeout=_TIMEOUT) as response:
                health = await response.json()
        except (ClientError, OSError, TimeoutError, ValueError):
            pass
        process = psutil.Process(self.pid)
        descriptors = process.num_fds() if psutil.POSIX else 0
        figures = process.memory_info().rss, descriptors, process.num_threads()
        return Sample(seconds, *figures, health)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The data of a finished soak test, with the faults, the table row and the report that follow from them."""

    samples: Sequence[Sample]  # the last one is from after all operations
    record: Record
    warm_up: float  # seconds
    exit_status: int  # of the server

    @property
    def growth(self) -> tuple[float, float] | None:
        """The bytes of memory after the warm-up and at the end, or None if there are too few samples after it."""
        memory = [sample.memory for sample in self.samples[:-1] if sample.seconds >= self.warm_up]
        if len(memory) < 2:
            return None
        window = min(_WINDOW, len(memory) // 2)
        return statistics.median(memory[:window]), statistics.median(memory[-window:])

    def faults(self) -> Iterator[str]:
        """Yield a description of each fault that the soak test found."""
        if surprises := self.record.surprises.total():
            yield f"{surprises} errors that were not provoked"
        if self.growth is not None and self._grown > MOST_GROWTH:
            yield f"memory grew by {self._grown:.1%}, expected at most {MOST_GROWTH:.0%}"
        if any(self.samples[-1].left):
            yield "requests are left: {}, active {}, queued {}".format(*self.samples[-1].left)
        if self.exit_status:
            yield f"the server ended with status {self.exit_status} after SIGTERM"

    @property
    def _grown(self) -> float:
        first, last = self.growth or (1.0, 1.0)
        return last / first - 1

    def row(self, minutes: float, device: str) -> Row:
        """Return the test's row for the table of docs/reliability.md."""
        often = f"{minutes:g} minutes, {len(self.record.timings):,} operations"
        lost = f"{self.record.surprises.total()} errors that were not provoked"
        memory = f"memory {self._grown:+.2%} after the warm-up"
        return Row("mixed traffic of two API keys", often, lost, memory, device)

    def lines(self) -> Iterator[str]:
        """Yield the details that the row leaves out, as Markdown."""
        yield from (f"  {count} x {what}" for what, count in self.record.surprises.most_common())
        if self.growth is not None:
            yield "memory: {:.1f} MB after the warm-up, {:.1f} MB at the end".format(*(x / 1e6 for x in self.growth))
        for name in ("descriptors", "threads"):
            first, last = (getattr(self.samples[place], name) for place in (0, -1))
            yield f"{name}: {first} in the first sample, {last} at the end"
        yield latency_table(self.record.timings)


def latency_table(timings: Sequence[Timing]) -> str:
    """Return a table with each operation's median in the first tenth and in the last tenth of the test."""
    rows = []
    whole = max((timing.begun for timing in timings), default=0.0)
    for name in sorted({timing.name for timing in timings}):
        of_name = [timing for timing in timings if timing.name == name]
        first = [timing.seconds for timing in of_name if timing.begun <= 0.1 * whole]
        last = [timing.seconds for timing in of_name if timing.begun >= 0.9 * whole]
        medians = [f"{1e3 * statistics.median(seconds):.0f}" if seconds else "-" for seconds in (first, last)]
        rows.append((name, str(len(of_name)), *medians))
    return table(("operation", "times", "ms, first tenth", "ms, last tenth"), rows)
