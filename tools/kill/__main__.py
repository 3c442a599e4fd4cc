"""Kill processes, and check that nothing is lost: `python -m tools.kill` and the name of what is killed.

What follows `--` goes to the command that is killed, as in `python -m tools.kill server -- --device cpu`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import click

from tools.kill.collections import CollectionLives
from tools.kill.fleet import CASES, disturb, one_engine, start_machines
from tools.kill.jobs import METHODS, JobCampaign
from tools.kill.kept import KeptLives
from tools.kill.lives import Lives, StateLives
from tools.kill.load import make_questions
from tools.kill.tuning import TuningCampaign
from tools.reliability_table import finish

_OPTIONS = click.argument("options", nargs=-1, type=click.UNPROCESSED)
_KILLS = click.option("--kills", type=click.IntRange(min=1), default=30, show_default=True)
_SEED = click.option("--seed", default=0, show_default=True)
_CONTEXT = {"ignore_unknown_options": True}


@click.group()
def main() -> None:
    """Kill what serves or trains, and check that nothing acknowledged is lost and no result wrong."""


def _add_lives(name: str, kind: type[Lives]) -> None:
    @main.command(name, help=kind.__doc__, context_settings=_CONTEXT)
    @_KILLS
    @_SEED
    @_OPTIONS
    def run(kills: int, seed: int, options: tuple[str, ...]) -> None:
        with TemporaryDirectory() as folder:
            lives = kind(Path(folder), options, Random(seed))
            for number in range(kills + 1):
                asyncio.run(lives.live(kill=number < kills))
                click.echo(f"{lives.kills}/{kills} kills, {len(lives.faults)} faults", err=True)
        finish(lives.row(), lives.faults)


for _name, _kind in (("server", StateLives), ("kept", KeptLives), ("collections", CollectionLives)):
    _add_lives(_name, _kind)


@main.command(context_settings=_CONTEXT)
@click.argument("case", type=click.Choice(list(CASES)))
@click.option("--times", type=click.IntRange(min=1), default=20, show_default=True, help="Of replicas and store.")
@_OPTIONS
def fleet(case: str, times: int, options: tuple[str, ...]) -> None:
    """Disturb a fleet with a shared store under load, and check every answer and every named state."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        with one_engine(folder) as url:
            questions = asyncio.run(make_questions(url))
        with start_machines(folder, options) as machines:
            campaign = asyncio.run(disturb(case, machines, questions, times))
    finish(campaign.row(case, times), campaign.faults)


@main.command(context_settings=_CONTEXT)
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Each is killed four times.")
@click.option("--command", type=click.Choice(["tune-state", "tune-lora"]), default="tune-state", show_default=True)
@_SEED
@_OPTIONS
def tuning(runs: int, command: str, seed: int, options: tuple[str, ...]) -> None:
    """Kill the training of a state or a LoRA at moments of every kind, go on with --resume, and compare the files."""
    with TemporaryDirectory() as folder:
        campaign = TuningCampaign(Path(folder), command, options, Random(seed))
        campaign.run(runs)
    finish(campaign.row(), campaign.faults)


@main.command(context_settings=_CONTEXT)
@_KILLS
@click.option("--method", type=click.Choice(list(METHODS)), default="state", show_default=True)
@_SEED
@_OPTIONS
def jobs(kills: int, method: str, seed: int, options: tuple[str, ...]) -> None:
    """Kill a server with a batch and a fine-tuning job until both have ended, and compare all that they made."""
    with TemporaryDirectory() as folder:
        campaign = JobCampaign(Path(folder), options, Random(seed), method)
        asyncio.run(campaign.run(kills))
    finish(campaign.row(), campaign.faults)


if __name__ == "__main__":
    main()
