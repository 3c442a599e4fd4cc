"""`python -m tools.kill server`, `kept`, `fleet`, `tuning` or `jobs`: kill processes, and check that nothing is lost.

What follows `--` goes to the command that is killed, `rnn-engine serve`, `rnn-engine fleet` or `rnn-engine tune-state`:
python -m tools.kill server -- --device cpu
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import click

from tools.kill.fleet import CASES, disturb, one_engine, start_machines
from tools.kill.jobs import JobCampaign
from tools.kill.kept import KeptLives
from tools.kill.lives import Lives, StateLives
from tools.kill.load import make_questions
from tools.kill.tuning import TuningCampaign
from tools.reliability_table import finish

_OPTIONS = click.argument("options", nargs=-1, type=click.UNPROCESSED)
_COUNT = click.IntRange(min=1)
_SEED = click.option("--seed", default=0, show_default=True)
_CONTEXT = {"ignore_unknown_options": True}


@click.group()
def main() -> None:
    """Kill what serves or trains, and check that nothing acknowledged is lost and no result wrong."""


@main.command(context_settings=_CONTEXT)
@click.option("--kills", type=_COUNT, default=200, show_default=True)
@_SEED
@_OPTIONS
def server(kills: int, seed: int, options: tuple[str, ...]) -> None:
    """Kill a server at random moments during writes, start it again, and compare all states and answers."""
    with TemporaryDirectory() as folder:
        lives = StateLives(Path(folder), options, Random(seed))
        _run(lives, kills)
    click.echo("\n".join(lives.lines()))
    finish(lives.row(), lives.faults)


@main.command(context_settings=_CONTEXT)
@click.option("--kills", type=_COUNT, default=30, show_default=True)
@_SEED
@_OPTIONS
def kept(kills: int, seed: int, options: tuple[str, ...]) -> None:
    """Kill a server that keeps conversations, responses in the background and message batches, and compare them."""
    with TemporaryDirectory() as folder:
        lives = KeptLives(Path(folder), options, Random(seed))
        _run(lives, kills)
    finish(lives.row(), lives.faults)


def _run(lives: Lives, kills: int) -> None:
    for number in range(kills + 1):
        asyncio.run(lives.live(kill=number < kills))
        click.echo(f"{lives.kills}/{kills} kills, {len(lives.faults)} faults", err=True)


@main.command(context_settings=_CONTEXT)
@click.argument("case", type=click.Choice(list(CASES)))
@click.option("--times", type=_COUNT, default=20, show_default=True, help="Of replicas and store.")
@click.option("--delay", default=0.2, show_default=True, help="Seconds that a message takes longer.")
@click.option("--replicas", type=click.IntRange(min=2), default=2, show_default=True)
@_OPTIONS
def fleet(case: str, times: int, delay: float, replicas: int, options: tuple[str, ...]) -> None:
    """Disturb a fleet with a shared store under load, and check every answer and every named state."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        with one_engine(folder) as url:
            questions = asyncio.run(make_questions(url))
        with start_machines(folder, replicas, options) as machines:
            campaign = asyncio.run(disturb(case, machines, questions, times, delay))
    finish(campaign.row(case, times, delay), campaign.faults)


@main.command(context_settings=_CONTEXT)
@click.option("--runs", type=_COUNT, default=3, show_default=True, help="Each is killed four times.")
@_SEED
@_OPTIONS
def tuning(runs: int, seed: int, options: tuple[str, ...]) -> None:
    """Kill the tuning of a state at moments of every kind, go on with --resume, and compare the states."""
    with TemporaryDirectory() as folder:
        campaign = TuningCampaign(Path(folder), options, Random(seed))
        campaign.run_undisturbed()
        for number in range(runs):
            campaign.run_with_kills(number)
    finish(campaign.row(), campaign.faults)


@main.command(context_settings=_CONTEXT)
@click.option("--kills", type=_COUNT, default=30, show_default=True, help="At least so many.")
@_SEED
@_OPTIONS
def jobs(kills: int, seed: int, options: tuple[str, ...]) -> None:
    """Kill a server with a batch and a fine-tuning job until both have ended, and compare all that they made."""
    with TemporaryDirectory() as folder:
        campaign = JobCampaign(Path(folder), options, Random(seed))
        asyncio.run(campaign.run(kills))
    finish(campaign.row(), campaign.faults)


if __name__ == "__main__":
    main()
