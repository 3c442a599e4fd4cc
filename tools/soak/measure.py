"""The measurements of a soak test: durations and errors of its operations, samples of the server, and the verdict."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from random import Random
from typing import IO, Any

import psutil
from aiohttp import ClientError, ClientSession, ClientTimeout

from tools.live_server.caller import Caller, SurpriseError
from tools.reliability_table import Row
from tools.soak.operations import Operation

MOST_GROWTH = 0.02
"""How much more memory the end may take than the time after the warm-up, as a part of that."""

_SLOWEST = 300.0  # seconds after which an operation counts as hanging
_READINGS = 10  # of the memory; a sample has their median, since requests come and go
_TIMEOUT = ClientTimeout(total=30)
_WINDOW = 5  # samples whose median is the memory at a time
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one successful operation: its start from the beginning of the run, and its duration, in seconds."""

    name: str
    begun: float
    seconds: float


@dataclass
class Record:
    """The operations that have ended so far: counts, durations, and unexpected errors."""

    timings: list[Timing] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    surprises: Counter[str] = field(default_factory=Counter)  # operation and error, if the error was not provoked

    @property
    def num_surprises(self) -> int:
        return self.surprises.total()


@dataclass
class Driver:
    """Starts `rate` operations a second on average, at moments and in an order that depend on `seed` alone.

    If `most` are running already, the next one waits, so that a slow machine gets less traffic instead of a backlog.
    """

    session: ClientSession
    url: str
    operations: Sequence[Operation]
    rate: float
    seed: int
    most: int
    record: Record = field(default_factory=Record)

    async def run(self, seconds: float) -> None:
        """Start operations for `seconds`, then wait until all of them have ended."""
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

    async def _run_one(self, number: int, begun: float) -> None:
        random = Random(f"{self.seed} {number}")
        [operation] = random.choices(self.operations, [operation.weight for operation in self.operations])
        at = time.monotonic()
        try:
            async with asyncio.timeout(_SLOWEST):
                await operation.run(Caller(self.session, self.url, random, number))
        except (SurpriseError, ClientError, OSError, TimeoutError) as error:
            self.record.surprises[f"{operation.name}: {type(error).__name__}: {error}"] += 1
            return
        self.record.done[operation.name] += 1
        if operation.timed:
            self.record.timings.append(Timing(operation.name, at - begun, time.monotonic() - at))


@dataclass(frozen=True, slots=True)
class Sample:
    """What a server and its process have at one time."""

    seconds: float
    memory: float  # bytes resident
    descriptors: int
    threads: int
    health: Mapping[str, Any]  # the answer of /health, empty if that failed
    cache: Mapping[str, int]  # tier -> bytes
    states: int  # bytes
    operations: int  # that have ended
    surprises: int

    @property
    def left(self) -> list[int]:
        """HTTP requests in progress, and those that are active and queued in the engine; -1: unknown."""
        return [self.health.get(name, -1) for name in ("requests", "active", "queued")]


@dataclass
class Sampler:
    """Samples a server every `interval` seconds, and writes each sample to `out` as a line of JSON."""

    session: ClientSession
    url: str
    pid: int
    interval: float
    out: IO[str]
    record: Record

    async def run(self, samples: list[Sample]) -> None:
        """Take samples and append them to `samples` until cancelled."""
        begun = time.monotonic()
        while True:
            readings = []
            for _ in range(_READINGS):
                await asyncio.sleep(self.interval / _READINGS)
                readings.append(psutil.Process(self.pid).memory_info().rss)
            sample = replace(await self.take(time.monotonic() - begun), memory=statistics.median(readings))
            samples.append(sample)
            self.out.write(json.dumps(asdict(sample)) + "\n")
            self.out.flush()

    async def take(self, seconds: float) -> Sample:
        """Return a sample of the server at this moment, from its routes and from the operating system."""
        health, cache, states = [await self._get(path) for path in ("/health", "/v1/cache?limit=0", "/v1/states")]
        process = psutil.Process(self.pid)
        descriptors = process.num_fds() if psutil.POSIX else 0
        done, surprises = self.record.done.total(), self.record.num_surprises
        figures = process.memory_info().rss, descriptors, process.num_threads()
        used = {tier["tier"]: tier["used"] for tier in cache.get("tiers", [])}
        return Sample(round(seconds, 1), *figures, health, used, states.get("bytes", 0), done, surprises)

    async def _get(self, path: str) -> dict[str, Any]:
        """Return the JSON of a route, or an empty object if the request fails: the operations report such faults."""
        try:
            async with self.session.get(self.url + path, timeout=_TIMEOUT) as response:
                body: dict[str, Any] = await response.json()
                return body
        except (ClientError, OSError, TimeoutError, ValueError):
            return {}


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of memory: bytes after the warm-up, bytes at the end, and the slope between them in bytes per hour."""

    first: float
    last: float
    slope: float

    @property
    def part(self) -> float:
        return self.last / self.first - 1

    @classmethod
    def of(cls, samples: Sequence[Sample], warm_up: float) -> Growth | None:
        """Return how memory grew after `warm_up` seconds. None if there are fewer than two samples after it."""
        points = [(at.seconds, at.memory) for at in samples if at.seconds >= warm_up]
        if len(points) < 2:
            return None
        times, memory = zip(*points, strict=True)
        window = min(_WINDOW, len(points) // 2)
        slope = statistics.linear_regression(times, memory).slope
        return cls(statistics.median(memory[:window]), statistics.median(memory[-window:]), 3600 * slope)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The data of a finished soak test, with the faults, the table row and the report that follow from them."""

    samples: Sequence[Sample]
    record: Record
    left: Sample  # after the last operation has ended
    warm_up: float  # seconds
    exit_status: int  # of the server

    @property
    def growth(self) -> Growth | None:
        return Growth.of(self.samples, self.warm_up)

    def faults(self) -> Iterator[str]:
        """Yield a description of each fault that the soak test found."""
        if self.record.num_surprises:
            yield f"{self.record.num_surprises} errors that were not provoked"
        if self.growth is not None and self.growth.part > MOST_GROWTH:
            yield f"memory grew by {self.growth.part:.1%}, expected at most {MOST_GROWTH:.0%}"
        if any(self.left.left):
            yield "requests are left: {}, active {}, queued {}".format(*self.left.left)
        if self.exit_status:
            yield f"the server ended with status {self.exit_status} after SIGTERM"

    def row(self, minutes: float, where: str, command: str) -> Row:
        """Return the test's row for the table of docs/reliability.md."""
        memory = "" if self.growth is None else f"memory {self.growth.part:+.2%} after the warm-up"
        return Row(
            "mixed traffic of two API keys",
            f"{minutes:g} minutes, {self.record.done.total():,} operations",
            f"{self.record.num_surprises} errors that were not provoked",
            memory,
            where,
            command,
        )

    def lines(self) -> Iterator[str]:
        """Yield the lines of the whole report, as Markdown."""
        yield f"{self.record.done.total()} operations, {self.record.num_surprises} errors that were not provoked"
        yield from (f"  {count} x {what}" for what, count in self.record.surprises.most_common())
        if self.growth is not None:
            first, last, slope = (bytes_ / _MEGABYTE for bytes_ in astuple(self.growth))
            yield f"memory: {first:.1f} MB after the warm-up, {last:.1f} MB at the end ({slope:+.2f} MB an hour)"
        for name in ("descriptors", "threads", "cache", "states"):
            yield f"{name}: {getattr(self.samples[0], name)} in the first sample, {getattr(self.left, name)} at the end"
        yield from latency_table(self.record.timings)


def latency_table(timings: Sequence[Timing]) -> Iterator[str]:
    """Yield the lines of a table: each operation's latency in the first tenth and in the last tenth of the test."""
    yield ""
    yield "| operation | times | median ms, first tenth | last tenth | 95 % ms, first tenth | last tenth |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    whole = max((timing.begun for timing in timings), default=0.0)
    for name in sorted({timing.name for timing in timings}):
        of_name = [timing for timing in timings if timing.name == name]
        first = [timing.seconds for timing in of_name if timing.begun <= 0.1 * whole]
        last = [timing.seconds for timing in of_name if timing.begun >= 0.9 * whole]
        figures = [_milliseconds(seconds, part) for part in (0.5, 0.95) for seconds in (first, last)]
        yield f"| {name} | {len(of_name)} | {' | '.join(figures)} |"
    yield ""


def _milliseconds(seconds: Sequence[float], part: float) -> str:
    return f"{1e3 * sorted(seconds)[int(part * (len(seconds) - 1))]:.0f}" if seconds else "-"
