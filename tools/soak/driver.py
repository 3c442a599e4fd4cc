"""A driver of the soak test: it starts operations at a given rate, and records their durations and errors."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from aiohttp import ClientError, ClientSession

from tools.live_server.caller import Caller, SurpriseError
from tools.soak.operations import Operation

_SLOWEST = 300.0  # seconds after which an operation counts as hanging


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
