"""Samples of a server during a soak test: its process's resources, and the figures that the server reports."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

import psutil
from aiohttp import ClientError, ClientSession, ClientTimeout

_READINGS = 10  # of the memory; a sample has their median, since requests come and go
_TIMEOUT = ClientTimeout(total=30)


@dataclass(frozen=True, slots=True)
class Sample:
    """A server's figures for one interval. Those of its process are None if the process id is not known."""

    seconds: float
    memory: float | None  # bytes resident
    descriptors: int | None
    threads: int | None
    requests: int  # HTTP requests in progress; `active` and `queued` are those in the engine
    active: int
    queued: int
    cache_used: dict[str, int]  # tier -> bytes
    cache_index: int  # bytes
    states: int  # bytes
    operations: int
    surprises: int


@dataclass
class Sampler:
    """Samples a server every `interval` seconds, and writes each sample to `out` as a line of JSON."""

    session: ClientSession
    url: str
    pid: int | None
    interval: float
    out: IO[str]
    counts: Callable[[], tuple[int, int]]  # operations that ended, and surprises

    async def run(self, samples: list[Sample]) -> None:
        """Take samples and append them to `samples` until cancelled."""
        begun = time.monotonic()
        while True:
            memory = await self._memory(self.interval)
            sample = replace(await self.take(time.monotonic() - begun), memory=memory)
            samples.append(sample)
            self.out.write(json.dumps(asdict(sample)) + "\n")
            self.out.flush()

    async def take(self, seconds: float) -> Sample:
        """Return a sample of the server at this moment, from its routes and from the operating system."""
        health, cache, states = [await self._get(path) for path in ("/health", "/v1/cache?limit=0", "/v1/states")]
        process = None if self.pid is None else psutil.Process(self.pid)
        operations, surprises = self.counts()
        return Sample(
            seconds=round(seconds, 1),
            memory=None if process is None else process.memory_info().rss,
            descriptors=None if process is None else _num_descriptors(process),
            threads=None if process is None else process.num_threads(),
            requests=health.get("requests", -1),
            active=health.get("active", -1),
            queued=health.get("queued", -1),
            cache_used={tier["tier"]: tier["used"] for tier in cache.get("tiers", [])},
            cache_index=(cache.get("totals") or {}).get("index_bytes", 0),
            states=states.get("bytes", 0),
            operations=operations,
            surprises=surprises,
        )

    async def _memory(self, seconds: float) -> float | None:
        """Return the median of the process's resident bytes over the next `seconds`; None if its id is unknown."""
        readings = []
        for _ in range(_READINGS):
            await asyncio.sleep(seconds / _READINGS)
            if self.pid is not None:
                readings.append(psutil.Process(self.pid).memory_info().rss)
        return statistics.median(readings) if readings else None

    async def _get(self, path: str) -> dict[str, Any]:
        """Return the JSON of the server's route `path`, or an empty object if the request fails.

        The operations report such faults.
        """
        try:
            async with self.session.get(self.url + path, timeout=_TIMEOUT) as response:
                body: dict[str, Any] = await response.json()
                return body
        except (ClientError, OSError, TimeoutError, ValueError):
            return {}


def _num_descriptors(process: psutil.Process) -> int | None:
    return process.num_fds() if psutil.POSIX else None
