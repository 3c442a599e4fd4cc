"""What is done to a fleet under load, and what must hold meanwhile and afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import click
from aiohttp import ClientSession

from rnn_engine import demo
from tools.fleet_kills.load import REPLICA, STORY, Load, Lost, Question, make_story
from tools.fleet_kills.machines import Machines
from tools.fleet_kills.names import Names
from tools.live_server.caller import Caller
from tools.live_server.facts import metric

CLIENTS = 5
CALM, BETWEEN = "undisturbed", "between"
_CALM_SECONDS = 15.0
_SETTLE_SECONDS = 1.0  # of load before something dies, and after all is well again
_LONGEST_DOWN = 2.0  # seconds that the store is gone
_PATIENCE = 120.0  # seconds until all must be well again
_POLL_SECONDS = 0.05


@dataclass
class Campaign:
    """One fleet under load. Made by `campaign`."""

    machines: Machines
    session: ClientSession
    load: Load
    names: Names
    random: Random
    faults: list[str] = field(default_factory=list)
    noticed: list[float] = field(default_factory=list)  # seconds from a death until the fleet told of it
    whole: list[float] = field(
        default_factory=list
    )  # seconds from a replica's death or the store's start until all is well

    store_bytes: float = 0.0  # of states that the replicas that lived at the end had read from the store

    @property
    def url(self) -> str:
        return self.machines.server.url

    async def rest(self) -> None:
        """Take the times of answers while nothing is done."""
        self.load.begin(CALM)
        await self._write_during(asyncio.sleep(_CALM_SECONDS))
        self._judge(CALM, lambda _: False)

    async def kill_replicas(self, times: int) -> None:
        """Kill replicas, one after another. Errors are for requests that ran on the one that was killed."""
        seen = set[str]()
        for number in range(times):
            part = f"kill {number + 1}"
            self.load.begin(part)
            await self._write_during(self._kill_a_replica())
            lost = self._judge(part, lambda lost: REPLICA.search(lost.message) is not None)
            gone = {found[1] for one in lost if (found := REPLICA.search(one.message)) is not None}
            self._note(len(gone) <= 1 and not gone & seen, f"{part}: requests of {sorted(gone)} were lost")
            seen |= gone

    async def restart_store(self, times: int) -> None:
        """Kill the store, and start it again. Errors are for requests that need named states."""
        for number in range(times):
            part = f"kill {number + 1}"
            self.load.begin(part)
            await self._write_during(self._restart_the_store())
            self._judge(part, lambda lost: lost.needs_store and "store" in lost.message)

    async def slow_network(self, seconds: float, delay: float) -> None:
        """Have each message between fleet and store take `delay` seconds longer. There are no errors."""
        part = f"{1e3 * delay:g} ms"
        self.load.begin(part)
        self.machines.network.delay = delay
        await self._write_during(asyncio.sleep(seconds))
        self.machines.network.delay = 0.0
        self._judge(part, lambda _: False)

    async def _write_during(self, disturbance: Awaitable[None]) -> None:
        """Change names until all is well again after a disturbance, and compare them with what was acknowledged."""
        stopping = asyncio.Event()
        writing = asyncio.create_task(self.names.write(stopping))
        try:
            await asyncio.sleep(_SETTLE_SECONDS)
            await disturbance
            await asyncio.sleep(_SETTLE_SECONDS)
        finally:
            stopping.set()
            await writing
        self.faults += await self.names.check(demo.model_path(), self.machines.store.url)

    async def _kill_a_replica(self) -> None:
        victim = self.random.choice(self.machines.replica_processes())
        begun = time.monotonic()
        victim.kill()
        full = self.machines.num_slots
        await self._until(lambda: self._slots_are(lambda slots: slots < full))
        self.noticed.append(time.monotonic() - begun)
        await self._until(lambda: self._slots_are(lambda slots: slots == full))
        self.whole.append(time.monotonic() - begun)

    async def _slots_are(self, wanted: Callable[[float], bool]) -> bool:
        return wanted(await metric(self.session, self.url, 'rnn_engine_slots{model="demo"}'))

    async def _restart_the_store(self) -> None:
        await asyncio.to_thread(self.machines.restart_store, self.random.uniform(0, _LONGEST_DOWN))
        begun = time.monotonic()
        await self._until(self._store_is_used)
        self.whole.append(time.monotonic() - begun)

    async def _store_is_used(self) -> bool:
        async with self.session.get(f"{self.url}/v1/states") as response:
            named = response.status == 200
        return named and await metric(self.session, self.url, 'rnn_engine_store_circuit_open{model="demo"}') == 0

    async def _until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(_PATIENCE):
            while not await reached():
                await asyncio.sleep(_POLL_SECONDS)

    def _judge(self, part: str, may_be: Callable[[Lost], bool]) -> list[Lost]:
        """End a part of the time; note its wrong answers, and the errors that have no excuse in what was done.

        Returns all errors, also those of changes of names.
        """
        self.load.begin(BETWEEN)
        tally = self.load.tallies[part]
        refused, self.names.refused = self.names.refused, []
        lost = tally.lost + [Lost(True, str(error), error.retryable, 0) for error in refused]
        self.faults += [f"{part}: wrong tokens: {wrong}" for wrong in tally.wrong]
        wrong = Counter(one.message for one in lost if not (one.retryable and may_be(one)))
        self.faults += [f"{part}: {count} times: {message}" for message, count in wrong.items()]
        click.echo(f"{part}: {tally.requests} requests, {len(lost)} errors; {len(self.faults)} faults", err=True)
        return lost

    def _note(self, held: bool, fault: str) -> None:
        if not held:
            self.faults.append(fault)


@asynccontextmanager
async def campaign(machines: Machines, questions: Sequence[Question], seed: int) -> AsyncIterator[Campaign]:
    """Give a campaign against a fleet that is under load, and check at the end that it stops as it should."""
    random = Random(seed)
    async with ClientSession() as session:
        url = machines.server.url
        names = Names(url, session, random)
        names.ledger.states[STORY] = await make_story(Caller(session, url, random, 0))
        load = Load(url, session, questions, random)
        made = Campaign(machines, session, load, names, random)
        load.begin(BETWEEN)
        async with load.clients(CLIENTS):
            yield made
        made.store_bytes = await metric(session, url, 'rnn_engine_store_bytes_total{direction="read",model="demo"}')
    if machines.server.stop() != 0:
        made.faults.append("the fleet did not end with 0 at SIGTERM")
