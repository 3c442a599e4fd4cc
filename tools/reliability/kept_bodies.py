"""`python -m tools.reliability.kept_bodies`: send large bodies that the server stores, and check its memory.

Arguments after `--` go to `rnn-engine serve`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import cycle

import click

from tools.attack_requests.attacks import KEPT, MEGABYTE
from tools.live_server.asking import device_of, patient_session
from tools.live_server.process import ServerProcess
from tools.reliability.table import Row, command_line, finish, record_option, where

_OPTIONS = ("--max-response-bytes", str(32 * MEGABYTE))  # which are full within the first half of three minutes
_MOST_GROWTH = 1.02  # of the second half's peak over the first half's


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the test: the server's memory in megabytes over time, and the number of bodies accepted."""

    device: str
    bodies: int
    start: float
    first_half: float  # the peak
    second_half: float
    end: float

    def faults(self) -> list[str]:
        """Return ["memory"] if the memory kept growing, otherwise an empty list."""
        return ["memory"] if self.second_half > _MOST_GROWTH * self.first_half else []


async def keep_bodies(server: ServerProcess, minutes: float) -> Outcome:
    """Send large bodies one after another for `minutes`, and return the results.

    Raises aiohttp.ClientResponseError if the server rejects one.
    """
    bodies = [(attack.path, attack.body()) for attack in KEPT]
    start, begun, samples = server.memory_megabytes(), time.monotonic(), []
    async with patient_session() as session:
        for path, body in cycle(bodies):
            async with session.post(server.url + path, data=body, raise_for_status=True) as response:
                await response.read()
            samples.append((time.monotonic() - begun, server.memory_megabytes()))
            if samples[-1][0] > 60 * minutes:
                break
        device = await device_of(session, server.url)
    first = max(size for at, size in samples if at <= 30 * minutes)
    second = max(size for at, size in samples if at > 30 * minutes)
    return Outcome(device, len(samples), start, first, second, samples[-1][1])


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="How long to send.")
@record_option
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(minutes: float, save: bool, serve_options: tuple[str, ...]) -> None:
    """Send large bodies that the server stores, and check that its memory does not keep growing."""
    with ServerProcess((*_OPTIONS, *serve_options)) as server:
        outcome = asyncio.run(keep_bodies(server, minutes))
    row = Row(
        f"large bodies that are kept, for {minutes:g} minutes",
        f"{outcome.bodies} bodies",
        " ".join(outcome.faults()) or "0",
        f"{outcome.start:.0f} MB at the start, at most {outcome.first_half:.0f} in the first half and "
        f"{outcome.second_half:.0f} in the second, {outcome.end:.0f} at the end",
        where(outcome.device),
        command_line("tools.reliability.kept_bodies"),
    )
    finish(row, outcome.faults(), save=save)


if __name__ == "__main__":
    main()
