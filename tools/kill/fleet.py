"""Tests of a fleet with a shared store that is disturbed under load: every answer and named state must be right."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import click
import psutil
from aiohttp import ClientSession

from rnn_engine import demo
from rnn_engine.fleet.remote import open_front
from rnn_engine_states.shared.config import StoreConfig, StoreUrl
from tests.support.store_server import SlowProxy, StoreServer
from tools.kill.ledger import Ledger, StateWriter
from tools.kill.load import STORY, Load, Lost, Question, Tally, make_story
from tools.live_server.asking import metric
from tools.live_server.caller import Caller, RefusedError
from tools.live_server.process import CLI, ServerProcess
from tools.reliability_table import Row

CASES = {
    "replicas": "SIGKILL of replicas of a fleet under load",
    "store": "SIGKILL and new start of the shared store of a fleet under load",
    "network": "a network to the shared store that is slow, under load",
}
CLIENTS = 5
_WRITERS = 2
_REPLICAS = 2
_SLOTS = 4  # of a replica
_BETWEEN = "between"
_SLOW_SECONDS = 60.0
_DELAY = 0.2  # seconds that a message between fleet and store takes longer, where the network is slow
_SETTLE_SECONDS = 1.0  # of load before something dies, and after all is well again
_LONGEST_DOWN = 2.0  # seconds that the store is gone
_PATIENCE = 120.0  # seconds until all must be well again
_STORE_TIMEOUT = 10.0  # seconds, of the server that reads what the store has
_POLL_SECONDS = 0.05

_ENGINE = ("--device", "cpu", "--slots", str(_SLOTS), "--cache-device-bytes", "0")
_FLEET = ("--cache-host-bytes", "1M", "--replica-cpus", "0.1")  # so little that most prompts go on from the store
# Acknowledged writes survive a kill of the store: each change is on the disk before it is answered.
_STORE = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "256mb")
_STORE_POLICY = ("--maxmemory-policy", "volatile-lru")


@dataclass(frozen=True, slots=True)
class Machines:
    """The processes of a fleet on this machine: replicas, store and server, and the network proxy between them."""

    store: StoreServer
    network: SlowProxy  # between the fleet and the store
    server: ServerProcess

    def replica_processes(self) -> list[psutil.Process]:
        """Return the processes of the replicas that are running, the oldest first."""
        below = psutil.Process(self.server.pid).children(recursive=True)
        return sorted(filter(_is_replica, below), key=lambda process: process.create_time())

    def restart_store(self, seconds: float) -> None:
        """Kill the store, and restart it after `seconds` with the data that it had written to disk. Blocks."""
        self.store.kill()
        time.sleep(seconds)
        self.store.start()


def _is_replica(process: psutil.Process) -> bool:
    try:
        return any("ServeReplica:" in word for word in process.cmdline()[:1])
    except psutil.Error:  # it has just ended
        return False


@contextmanager
def start_machines(folder: Path, options: Sequence[str]) -> Iterator[Machines]:
    """Start a fleet, yield it once it accepts requests, and kill it. `options` go to `rnn-engine fleet`."""
    with ExitStack() as undo:
        store = StoreServer(folder, *_STORE, *_STORE_POLICY)
        undo.callback(store.kill)
        network = SlowProxy(store.port, 0.0)
        undo.callback(network.close)
        fleet = (*_ENGINE, *_FLEET, "--replicas", str(_REPLICAS), "--store", network.url, *options)
        server = undo.enter_context(ServerProcess(fleet, command=(CLI, "fleet")))
        yield Machines(store, network, server)


@contextmanager
def one_engine(folder: Path) -> Iterator[str]:
    """Start a server with one engine and without a cache, and yield its URL. Its answers are the expected ones."""
    options = (*_ENGINE, "--cache-host-bytes", "0", "--state-folder", str(folder / "states"))
    with ServerProcess(options) as server:
        yield server.url


@dataclass
class Campaign:
    """A test run: a fleet under load, in which replicas are killed, the store restarts, or the network is slow."""

    machines: Machines
    session: ClientSession
    load: Load
    random: Random
    ledger: Ledger
    refused: list[RefusedError] = field(default_factory=list)  # changes of names in this part of the time
    faults: list[str] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)  # seconds from a death, or the store's start, until all is well

    @property
    def url(self) -> str:
        return self.machines.server.url

    async def kill_replicas(self, times: int) -> None:
        """Kill `times` replicas, one after another. Only requests that ran on the killed one may fail."""
        seen = set[str]()
        for number in range(1, times + 1):
            lost = await self._disturb(f"kill {number}", self._kill_a_replica(), lambda one: bool(one.replica))
            gone = {one.replica for one in lost if one.replica}
            if len(gone) > 1 or gone & seen:
                self.faults.append(f"kill {number}: requests of {sorted(gone)} were lost")
            seen |= gone

    async def restart_store(self, times: int) -> None:
        """Kill and restart the store. Only requests that need named states may end with an error."""
        for number in range(1, times + 1):
            await self._disturb(
                f"kill {number}", self._restart_the_store(), lambda one: one.needs_store and "store" in one.message
            )

    async def slow_network(self) -> None:
        """Delay each message between fleet and store for a while. No request may fail."""
        self.machines.network.delay = _DELAY
        await self._disturb("slow", asyncio.sleep(_SLOW_SECONDS), lambda _: False)

    async def _disturb(self, part: str, disturbance: Awaitable[None], may_be: Callable[[Lost], bool]) -> list[Lost]:
        """Run `disturbance` while writers change named states, wait for its requests, and check all named states.

        `part` names it in the report. Notes wrong answers, wrong names, and errors that `may_be` does not excuse.
        Returns all errors.
        """
        tally, stopping = self.load.begin(part), asyncio.Event()
        writing = asyncio.create_task(self._write(stopping))
        try:
            await asyncio.sleep(_SETTLE_SECONDS)
            await disturbance
            await asyncio.sleep(_SETTLE_SECONDS)
        finally:
            stopping.set()
            await writing
        self.load.begin(_BETWEEN)
        await self._until(lambda: _has_ended(tally))
        self.machines.network.delay = 0.0
        self.faults += await self._check_names()
        lost = tally.lost + [Lost(True, str(error), error.retryable, 0) for error in self.refused]
        self.refused.clear()
        self.faults += [f"{part}: wrong tokens: {wrong}" for wrong in tally.wrong]
        wrong = Counter(one.message for one in lost if not (one.retryable and may_be(one)))
        self.faults += [f"{part}: {count} times: {message}" for message, count in wrong.items()]
        click.echo(f"{part}: {tally.requests} requests, {len(lost)} errors; {len(self.faults)} faults", err=True)
        return lost

    async def _write(self, stopping: asyncio.Event) -> None:
        """Run writers until `stopping` is set. One whose write is refused ends: the write may have been made."""

        async def write(number: int) -> None:
            writer = StateWriter(self._caller(), self.ledger, number)
            try:
                while not stopping.is_set():
                    await writer.write()
            except RefusedError as error:
                self.refused.append(error)

        await asyncio.gather(*map(write, range(_WRITERS)))

    async def _check_names(self) -> list[str]:
        """Read all named states from the store with a new front, and return how they differ from the ledger."""
        store = StoreConfig(StoreUrl.parse(self.machines.store.url), timeout=_STORE_TIMEOUT)
        front = await asyncio.to_thread(open_front, demo.model_path(), store=store)
        try:
            listed = (await front.states.list()).entries
            found = {entry.name: (await front.states.get(entry.name)).frozen.digest for entry in listed}
        finally:
            front.close()
        return self.ledger.check(found)

    async def _kill_a_replica(self) -> None:
        victim = self.random.choice(self.machines.replica_processes())
        begun = time.monotonic()
        victim.kill()
        await self._until(lambda: self._has_all_slots(False))
        await self._until(lambda: self._has_all_slots(True))
        self.whole.append(time.monotonic() - begun)

    async def _has_all_slots(self, wanted: bool) -> bool:
        slots = await metric(self.session, self.url, 'rnn_engine_slots{model="demo"}')
        return (slots == _REPLICAS * _SLOTS) == wanted

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

    def _caller(self) -> Caller:
        return Caller(self.session, self.url, Random(self.random.random()), 0)

    def row(self, case: str, times: int) -> Row:
        """Return the run's row for the table of docs/reliability.md."""
        often = f"{1e3 * _DELAY:g} ms each way, {_SLOW_SECONDS:g} s" if case == "network" else f"{times} times"
        tallies, ledger = self.load.tallies.values(), self.ledger
        errors = sum((tally.errors for tally in tallies), Counter[str]())
        requests, wrong = sum(tally.requests for tally in tallies), sum(len(tally.wrong) for tally in tallies)
        lost = [
            f"{len(self.faults)} faults: {requests} requests, {wrong} with wrong tokens",
            *(f"{count} times: {message}" for message, count in errors.most_common()),
            f"{ledger.acknowledged.total()} changes of names acknowledged, {ledger.cut_off.total()} refused",
        ]
        measured = ""
        if self.whole:
            measured = f"whole again after {statistics.median(self.whole):.1f} s, at most {max(self.whole):.1f} s"
        return Row(CASES[case], f"{often}, {CLIENTS} clients", "; ".join(lost), measured, f"cpu, {_REPLICAS} replicas")


async def _has_ended(tally: Tally) -> bool:
    """Return True if all requests that began in a part of the test have ended, so that its tally is complete."""
    return tally.running == 0


async def disturb(case: str, machines: Machines, questions: Sequence[Question], times: int) -> Campaign:
    """Run a whole test: put a fleet under load, disturb it as `case` says, and check that SIGTERM ends it."""
    random, url = Random(0), machines.server.url
    async with ClientSession() as session:
        load = Load(url, session, questions, random)
        load.begin(_BETWEEN)
        made = Campaign(machines, session, load, random, Ledger({STORY: await make_story(session, url)}))
        async with load.clients(CLIENTS):
            match case:
                case "replicas":
                    await made.kill_replicas(times)
                case "store":
                    await made.restart_store(times)
                case _:
                    await made.slow_network()
    made.faults += [f"between: wrong tokens: {wrong}" for wrong in load.tallies[_BETWEEN].wrong]
    if machines.server.stop() != 0:
        made.faults.append("the fleet did not end with 0 at SIGTERM")
    return made
