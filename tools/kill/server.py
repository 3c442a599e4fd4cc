"""A test of one server that is killed during writes and restarted over the same folders, again and again."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from aiohttp import ClientError, ClientSession

from tools.kill.ledger import Ledger, StateWriter
from tools.live_server.asking import device_of
from tools.live_server.caller import Caller, KnownAnswers, SurpriseError
from tools.live_server.process import ServerProcess
from tools.reliability_table import Row, command_line, where

_WRITERS = 4
_PROMPTS = 40  # whose answers are compared: more than host memory keeps, so that most come from files
_KNOWN = 10  # answers that are compared after each start
_MOST_WRITES = 12  # that are acknowledged before a kill
_LONGEST_DELAY = 0.1  # seconds from the last of them to the kill
_PATIENCE = 60.0  # seconds in which they have to be acknowledged
_OPTIONS = ("--cache-device-bytes", "0", "--cache-host-bytes", "2M", "--cache-disk-bytes", "16M")


@dataclass
class Campaign:
    """A test run over all lives of a server, each from a start to a kill or stop. It has the ledger and the faults."""

    folder: Path
    options: tuple[str, ...]
    random: Random
    ledger: Ledger = field(default_factory=Ledger)
    answers: KnownAnswers = field(default_factory=lambda: KnownAnswers(_PROMPTS))
    starts: list[float] = field(default_factory=list)  # seconds
    kills: int = 0
    device: str = ""
    faults: list[str] = field(default_factory=list)

    async def live(self, *, kill: bool) -> None:
        """Run one life: start the server, check its states and answers, and write until it is killed, or stop it."""
        folders = ("--cache-folder", f"{self.folder}/cache", "--state-folder", f"{self.folder}/states")
        begun = time.monotonic()
        with ServerProcess((*_OPTIONS, *folders, *self.options)) as server:
            self.starts.append(time.monotonic() - begun)
            async with ClientSession() as session:
                await self._check(session, server.url)
                if kill:
                    await self._write_until_killed(session, server)
                    self.kills += 1
                else:
                    self._note(server.stop() == 0, "the server did not end with 0 at SIGTERM")

    async def _check(self, session: ClientSession, url: str) -> None:
        caller = self._caller(session, url)
        left = [path.name for path in self.folder.glob("*/*.partial")]  # before the answers below are kept in files
        self._note(not left, f"files of writes that were cut short are left: {left}")
        try:
            listed = (await caller.call("GET", "/v1/states"))["data"]
            writable = [entry for entry in listed if entry["persistent"] and not entry["read_only"]]
            self.faults += self.ledger.check({entry["name"]: entry["digest"] for entry in writable})
            for _ in range(_KNOWN):
                await self.answers.ask(caller)
            self.device = await device_of(session, url)
        except (SurpriseError, ClientError) as error:
            self.faults.append(f"after a start: {error}")

    async def _write_until_killed(self, session: ClientSession, server: ServerProcess) -> None:
        writers = [StateWriter(self._caller(session, server.url), self.ledger, number) for number in range(_WRITERS)]
        asker = self._caller(session, server.url)
        tasks = [asyncio.create_task(_again_and_again(writer.write)) for writer in writers]
        tasks.append(asyncio.create_task(_again_and_again(lambda: self.answers.ask(asker))))
        await self._wait_for_writes(self.random.randrange(_MOST_WRITES))
        await asyncio.sleep(self.random.uniform(0, _LONGEST_DELAY))
        self._note(server.running, "the server ended by itself")
        server.kill()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            self._note(isinstance(outcome, (ClientError, ConnectionError)), f"while writing: {outcome!r}")

    async def _wait_for_writes(self, count: int) -> None:
        acknowledged = self.ledger.acknowledged
        wanted = acknowledged.total() + count
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while acknowledged.total() < wanted:
                    await asyncio.sleep(0.001)
        self._note(acknowledged.total() >= wanted, f"less than {count} writes were acknowledged in {_PATIENCE:g} s")

    def _caller(self, session: ClientSession, url: str) -> Caller:
        return Caller(session, url, Random(self.random.random()), 0)

    def _note(self, held: bool, fault: str) -> None:
        if not held:
            self.faults.append(fault)

    def row(self) -> Row:
        """Return the run's row for the table of docs/reliability.md."""
        ledger, answers, states = self.ledger, self.answers, self.ledger.checks
        return Row(
            "SIGKILL at random moments during writes",
            f"{self.kills} kills, {ledger.acknowledged.total()} writes acknowledged, {ledger.cut_off.total()} cut off",
            f"{len(self.faults)} of {states + answers.asked} states and answers",
            f"{states} states checked, {answers.asked} answers compared, {answers.cached} of them from the cache",
            where(self.device),
            command_line("tools.kill"),
        )

    def lines(self) -> Iterator[str]:
        """Yield the details that the table's row leaves out: start times, and the writes by kind."""
        yield f"{len(self.starts)} starts, {statistics.median(self.starts):.2f} s, at most {max(self.starts):.2f} s"
        yield from (f"acknowledged: {kind}: {count}" for kind, count in sorted(self.ledger.acknowledged.items()))
        yield from (f"cut off: {what} was found: {count}" for what, count in sorted(self.ledger.cut_off.items()))


async def _again_and_again(act: Callable[[], Awaitable[None]]) -> None:
    """Call `act` without end. Returns only by an exception: the connection breaks, or an answer is unexpected."""
    while True:
        await act()
