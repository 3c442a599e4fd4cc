"""`python -m tools.kill`: SIGKILL a server at random moments during writes, start it again, and check everything.

Arguments after `--` go to `rnn-engine serve`: python -m tools.kill --kills 200 -- --device cpu
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import click
from aiohttp import ClientError, ClientSession

from tools.kill.ledger import Ledger
from tools.kill.writers import KnownAnswers, StateWriter
from tools.live_server.caller import Caller, SurpriseError
from tools.live_server.facts import device_of
from tools.live_server.process import ServerProcess
from tools.reliability.table import Row, command_line, record, record_option, where

_WRITERS = 4
_KNOWN = 10  # answers that are compared after each start
_MOST_WRITES = 12  # a random number of writes below this is acknowledged before a kill
_LONGEST_DELAY = 0.1  # seconds from the last of these writes to the kill
_PATIENCE = 60.0  # seconds in which these writes have to be acknowledged
_OPTIONS = ("--cache-device-bytes", "0", "--cache-host-bytes", "2M", "--cache-disk-bytes", "16M")


@dataclass
class Campaign:
    """All runs of a server over the same folders, and what they have shown."""

    folder: Path
    options: tuple[str, ...]
    random: Random
    ledger: Ledger = field(default_factory=Ledger)
    answers: KnownAnswers = field(default_factory=KnownAnswers)
    starts: list[float] = field(default_factory=list)  # seconds
    kills: int = 0
    device: str = ""
    faults: list[str] = field(default_factory=list)

    async def live(self, *, kill: bool) -> None:
        """Start the server and check its states and answers; then write and kill it, or stop it without writing."""
        folders = ("--cache-folder", f"{self.folder}/cache", "--state-folder", f"{self.folder}/states")
        begun = time.monotonic()
        with ServerProcess(self.folder / "log", (*_OPTIONS, *folders, *self.options)) as server:
            self.starts.append(time.monotonic() - begun)
            async with ClientSession() as session:
                await self._check(session, server.url)
                if kill:
                    await self._write_until_killed(session, server)
                    self.kills += 1
                else:
                    self._note(server.stop() == 0, "the server did not exit with status 0 after SIGTERM")

    async def _check(self, session: ClientSession, url: str) -> None:
        caller = self._caller(session, url)
        left = [path.name for path in self.folder.glob("*/*.partial")]  # before the requests below write files
        self._note(not left, f"files of interrupted writes are left: {left}")
        try:
            listed = (await caller.call("GET", "/v1/states"))["data"]
            found = {
                entry["name"]: entry["digest"] for entry in listed if entry["persistent"] and not entry["read_only"]
            }
            self.faults += self.ledger.check(found)
            for _ in range(_KNOWN):
                await self.answers.ask(caller)
            self.device = await device_of(session, url)
        except (SurpriseError, ClientError) as error:
            self.faults.append(f"after a start: {error}")

    async def _write_until_killed(self, session: ClientSession, server: ServerProcess) -> None:
        writers = [StateWriter(self._caller(session, server.url), self.ledger, number) for number in range(_WRITERS)]
        tasks = [asyncio.create_task(writer.run()) for writer in writers]
        tasks.append(asyncio.create_task(self.answers.run(self._caller(session, server.url))))
        await self._wait_for_writes(self.random.randrange(_MOST_WRITES))
        await asyncio.sleep(self.random.uniform(0, _LONGEST_DELAY))
        self._note(server.running, "the server ended unexpectedly")
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
        """Return the row for docs/reliability.md."""
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
        """Yield the lines of the table, and a line for every fault."""
        ledger, answers = self.ledger, self.answers
        rows = {
            "SIGKILL during writes": self.kills,
            "starts; seconds, median and greatest": f"{len(self.starts)}; {statistics.median(self.starts):.2f}, "
            f"{max(self.starts):.2f}",
            **{f"acknowledged: {kind}": count for kind, count in sorted(ledger.acknowledged.items())},
            **{f"cut off: {what} was found": count for what, count in sorted(ledger.cut_off.items())},
            "checks of acknowledged states after a start": ledger.checks,
            "answers compared; from a kept state": f"{answers.asked}; {answers.cached}",
            "lost, wrong or corrupt": len(self.faults),
        }
        yield "| what | how often |"
        yield "| --- | ---: |"
        yield from (f"| {what} | {count} |" for what, count in rows.items())
        yield from (f"FAULT: {fault}" for fault in self.faults)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--kills", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@record_option
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(kills: int, seed: int, save: bool, serve_options: tuple[str, ...]) -> None:
    """Kill a server at random moments during writes, and check each time that nothing acknowledged is lost."""
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), serve_options, Random(seed))
        for number in range(kills + 1):
            asyncio.run(campaign.live(kill=number < kills))
            if sys.stderr.isatty():
                click.echo(f"\r{number}/{kills} kills, {len(campaign.faults)} faults", err=True, nl=number == kills)
    click.echo("\n".join(campaign.lines()))
    if save:
        record(campaign.row())
    sys.exit(1 if campaign.faults else 0)


if __name__ == "__main__":
    main()
