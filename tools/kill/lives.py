"""A server that is killed during changes and started again over the same folder, again and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import ClassVar, TypeAlias

from aiohttp import ClientError, ClientSession

from rnn_engine.files import TEMPORARY_SUFFIX
from tools.kill.ledger import Ledger, StateWriter, found_states
from tools.live_server.asking import device_of
from tools.live_server.caller import Caller, KnownAnswers, SurpriseError
from tools.live_server.process import ServerProcess
from tools.reliability_table import Row

Act: TypeAlias = Callable[[], Awaitable[None]]

_PATIENCE = 120.0  # seconds in which the changes of a life have to be acknowledged
_WRITERS = 4
_PROMPTS = 40  # whose answers are compared: more than host memory keeps, so that most come from files
_KNOWN = 10  # answers that are compared after each start


@dataclass
class Lives:
    """A test run over all lives of a server, each from a start to a kill or stop, with the faults that were found."""

    folder: Path
    options: tuple[str, ...]
    random: Random
    kills: int = 0
    device: str = ""
    faults: list[str] = field(default_factory=list)
    changes: Counter[str] = field(default_factory=Counter)  # that were acknowledged, by their kind
    checked: Counter[str] = field(default_factory=Counter)  # what was compared after a start

    what: ClassVar[str]  # is done, for the table of docs/reliability.md
    most_changes: ClassVar[int]  # that are acknowledged before a kill
    longest_delay: ClassVar[float]  # seconds from the last of them to the kill

    async def live(self, *, kill: bool) -> None:
        """Run one life: start the server, check what was acknowledged before, and change it until a kill, or stop."""
        cut_short = self.cut_short()
        with ServerProcess((*self.serve_options(), *self.options)) as server:
            left = [path.name for path in cut_short if path.exists()]
            self.note(not left, f"files of writes that were cut short are left: {left}")
            async with ClientSession() as session:
                try:
                    await self.check(self._caller(session, server.url))
                    self.device = await device_of(server.url)
                except (SurpriseError, ClientError) as error:
                    self.faults.append(f"after a start: {error}")
                if kill and await self.change_until_killed(session, server):
                    self.kills += 1
                else:
                    self.note(server.stop() == 0, "the server did not end with 0 at SIGTERM")

    def cut_short(self) -> list[Path]:
        """Return the files of writes that were cut short, which the next start has to remove."""
        return [path for path in self.folder.rglob(f"*{TEMPORARY_SUFFIX}") if path.is_file()]

    def serve_options(self) -> Sequence[str]:
        """Return the server's options, with a place of its files in `folder`."""
        return ("--job-folder", str(self.folder))

    async def check(self, caller: Caller) -> None:
        """Compare what the server has with what was acknowledged. Raises SurpriseError for an unexpected answer."""
        raise NotImplementedError

    def acts(self, make_caller: Callable[[], Caller]) -> Sequence[Act]:
        """Return changes that are made again and again, in parallel, until the server is killed."""
        raise NotImplementedError

    def row(self) -> Row:
        """Return the run's row for the table of docs/reliability.md."""
        done, checked = (
            ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) for counts in (self.changes, self.checked)
        )
        faults = f"{len(self.faults)} lost, half there, twice there or wrong"
        often, after = f"{self.kills} kills; acknowledged: {done}", f"after the next start: {checked}"
        return Row(self.what, often, faults, after, self.device)

    def note(self, held: bool, fault: str) -> None:
        if not held:
            self.faults.append(fault)

    async def change_until_killed(self, session: ClientSession, server: ServerProcess) -> bool:
        """Run `acts` and kill the server at a random moment. Return False if the run has ended before that."""
        acts = self.acts(lambda: self._caller(session, server.url))
        tasks = [asyncio.create_task(_again_and_again(act, lambda: server.running)) for act in acts]
        wanted = self.changes.total() + self.random.randrange(self.most_changes)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while self.changes.total() < wanted:
                    await asyncio.sleep(0.001)
        self.note(self.changes.total() >= wanted, f"too few changes were acknowledged in {_PATIENCE:g} s")
        await asyncio.sleep(self.random.uniform(0, self.longest_delay))
        self.note(server.running, "the server ended by itself")
        server.kill()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            self.note(outcome is None, f"while changing: {outcome!r}")
        return True

    def _caller(self, session: ClientSession, url: str) -> Caller:
        return Caller(session, url, Random(self.random.random()), 0)


async def _again_and_again(act: Act, goes_on: Callable[[], bool]) -> None:
    """Call `act` until `goes_on` returns False, or the connection breaks."""
    while goes_on():
        try:
            await act()
        except (ClientError, ConnectionError):
            if goes_on():
                raise


@dataclass
class StateLives(Lives):
    """Kill a server at random moments during writes, start it again, and compare all states and answers."""

    answers: KnownAnswers = field(default_factory=lambda: KnownAnswers(_PROMPTS))

    most_changes = 12
    longest_delay = 0.1

    def serve_options(self) -> Sequence[str]:
        folders = ("--cache-folder", f"{self.folder}/cache", "--state-folder", f"{self.folder}/states")
        return (*folders, "--cache-device-bytes", "0", "--cache-host-bytes", "2M", "--cache-disk-bytes", "16M")

    def __post_init__(self) -> None:
        self.ledger = Ledger(acknowledged=self.changes)

    async def check(self, caller: Caller) -> None:
        self.faults += self.ledger.check(await found_states(caller))
        for _ in range(_KNOWN):
            await self.answers.ask(caller)

    def acts(self, make_caller: Callable[[], Caller]) -> Sequence[Act]:
        asker = make_caller()
        writers = [StateWriter(make_caller(), self.ledger, number) for number in range(_WRITERS)]
        return [*(writer.write for writer in writers), lambda: self.answers.ask(asker)]

    def row(self) -> Row:
        ledger, answers, states = self.ledger, self.answers, self.ledger.checks
        return Row(
            "SIGKILL at random moments during writes",
            f"{self.kills} kills, {ledger.acknowledged.total()} writes acknowledged, {ledger.cut_off.total()} cut off",
            f"{len(self.faults)} of {states + answers.asked} states and answers",
            f"{states} states checked, {answers.asked} answers compared, {answers.cached} of them from the cache",
            self.device,
        )
