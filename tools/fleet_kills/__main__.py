"""`python -m tools.fleet_kills CASE`: run a fleet with a shared store under load, and kill or slow down parts of it.

Arguments after `--` go to `rnn-engine fleet`: python -m tools.fleet_kills replicas --times 20
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import click
from aiohttp import ClientSession

from tools.fleet_kills.cases import BETWEEN, CALM, CLIENTS, Campaign, campaign
from tools.fleet_kills.load import Question, make_questions
from tools.fleet_kills.machines import Machines, OneEngine
from tools.live_server.caller import Caller
from tools.reliability.table import Row, command_line, record, record_option, where

_CASES = {
    "replicas": "SIGKILL of replicas of a fleet under load",
    "store": "SIGKILL and new start of the shared store of a fleet under load",
    "network": "a network to the shared store that is slow, under load",
}
_SLOW_SECONDS = 60.0


async def run_case(case: str, machines: Machines, questions: Sequence[Question], times: int, delay: float) -> Campaign:
    """Run a case against a fleet, and return its campaign with the results."""
    async with campaign(machines, questions, seed=0) as made:
        await made.rest()
        match case:
            case "replicas":
                await made.kill_replicas(times)
            case "store":
                await made.restart_store(times)
            case _:
                await made.slow_network(_SLOW_SECONDS, delay)
    return made


async def ask_one_engine(url: str) -> list[Question]:
    """Return the questions, with the answers of one engine."""
    async with ClientSession() as session:
        return await make_questions(Caller(session, url, Random(0), 0))


def row_of(case: str, made: Campaign, often: str) -> Row:
    """Return the row for docs/reliability.md."""
    return Row(
        _CASES[case],
        often,
        f"{len(made.faults)} faults",
        "; ".join(measured(made)),
        where(f"cpu, {made.machines.replicas} replicas"),
        command_line("tools.fleet_kills"),
    )


def measured(made: Campaign) -> Iterator[str]:
    """Yield the figures of a campaign."""
    tallies = {part: tally for part, tally in made.load.tallies.items() if part not in (CALM, BETWEEN)}
    all_of_them = made.load.tallies.values()
    errors = sum((tally.errors for tally in all_of_them), Counter[str]())
    ledger = made.names.ledger
    yield (
        f"{sum(tally.requests for tally in all_of_them)} requests, "
        f"{sum(len(tally.wrong) for tally in all_of_them)} with wrong tokens, {errors.total()} errors"
    )
    yield from (f"{count} times: {message}" for message, count in errors.most_common())
    yield (
        f"{ledger.acknowledged.total()} changes of names acknowledged, {ledger.cut_off.total()} refused, "
        f"{ledger.checks} states checked"
    )
    yield f"{made.store_bytes / 1e6:.0f} MB of states read from the store by the replicas that lived at the end"
    if made.noticed:
        yield f"noticed after {spread(made.noticed, 's')}"
    if made.whole:
        yield f"whole again after {spread(made.whole, 's')}"
    calm = made.load.tallies[CALM]
    for what, usual, then in (
        ("first tokens", calm.first, [value for tally in tallies.values() for value in tally.first]),
        ("from a named state", calm.first_named, [value for tally in tallies.values() for value in tally.first_named]),
    ):
        yield f"{what} after {percentiles(then)}, undisturbed {percentiles(usual)}"


def spread(seconds: Sequence[float], unit: str) -> str:
    """Format the median and the greatest of some durations."""
    return f"{statistics.median(seconds):.1f} {unit}, at most {max(seconds):.1f} {unit}"


def percentiles(seconds: Sequence[float]) -> str:
    """Format the median and the 99th percentile of some durations, in milliseconds."""
    if len(seconds) < 2:
        return "too few"
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"{1e3 * cuts[49]:.0f} ms (99 %: {1e3 * cuts[98]:.0f} ms)"


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("case", type=click.Choice(list(_CASES)))
@click.option(
    "--times",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many times replicas or the store are killed.",
)
@click.option(
    "--delay",
    type=float,
    default=0.2,
    show_default=True,
    help="Seconds by which each message of the network is delayed.",
)
@click.option("--replicas", type=click.IntRange(min=2), default=2, show_default=True)
@record_option
@click.argument("fleet_options", nargs=-1, type=click.UNPROCESSED)
def main(case: str, times: int, delay: float, replicas: int, save: bool, fleet_options: tuple[str, ...]) -> None:
    """Disturb a fleet under load, and check every answer and every named state."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with OneEngine(folder) as url:
            questions = asyncio.run(ask_one_engine(url))
        with Machines(folder, replicas, fleet_options) as machines:
            made = asyncio.run(run_case(case, machines, questions, times, delay))
    often = f"{1e3 * delay:g} ms each way, {_SLOW_SECONDS:g} s" if case == "network" else f"{times} times"
    row = row_of(case, made, f"{often}, {CLIENTS} clients")
    click.echo(str(row))
    click.echo("\n".join(f"FAULT: {fault}" for fault in made.faults))
    if save:
        record(row)
    sys.exit(1 if made.faults else 0)


if __name__ == "__main__":
    main()
