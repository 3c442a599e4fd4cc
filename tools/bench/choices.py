"""`python -m tools.bench.choices`: choices after one context, scored in three ways that must agree.

Batched, each from a copy of the state after the context; one after the other, each from a copy; and one after the
other, each with the whole context. Everything runs through the engine that the server has, from an empty cache.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from rnn_engine.engine import Engine
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.operations.scoring import ChoiceScore, score_choices
from states.cache.config import CacheConfig
from tools.bench.model_files import DEMO, NAMES, find_model

_BOUND = 1e-4  # of a choice's log-probability
_LONGEST = 8  # tokens of a choice


@dataclass(frozen=True, slots=True)
class Way:
    """How choices are scored."""

    name: str
    kept: bool  # states are
    limit: int | None  # choices at a time; None = as many as there are slots


WAYS = (
    Way("batched", kept=True, limit=None),
    Way("one by one", kept=True, limit=1),
    Way("one by one, the context each time", kept=False, limit=1),
)


@dataclass(frozen=True, slots=True)
class Timed:
    """The scores of one way, and how long they took."""

    seconds: float
    scores: tuple[ChoiceScore, ...]

    def context_tokens_run(self, context: Sequence[int]) -> int:
        """Return how many tokens of the context were run, over all choices."""
        return sum(max(len(context) - score.given.cost.cached_tokens, 0) for score in self.scores)

    def difference(self, other: Timed) -> float:
        """Return the greatest difference of a choice's log-probability."""
        pairs = zip(self.scores, other.scores, strict=True)
        return max(abs(one.given.total - two.given.total) for one, two in pairs)


@dataclass(frozen=True, slots=True)
class Task:
    """The context and the choices, the same for every way."""

    context: list[int]
    choices: list[list[int]]


@click.command()
@click.option("--model", "name", type=click.Choice(NAMES), default=DEMO, show_default=True)
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--slots", default=8, show_default=True)
@click.option("--context", "context_tokens", default=2000, show_default=True, help="Tokens.")
@click.option("--choices", "num_choices", default=100, show_default=True, help=f"Of 1 to {_LONGEST} tokens each.")
@click.option("--repeats", default=3, show_default=True, help="Times that each way is run.")
def main(name: str, device: str, slots: int, context_tokens: int, num_choices: int, repeats: int) -> None:
    """Measure the scoring of choices, and check that all ways agree."""
    with tempfile.TemporaryDirectory() as folder:
        model = find_model(name, Path(folder))
        asyncio.run(_compare(model, device, slots, repeats, _draw(model, context_tokens, num_choices)))


def _draw(model: Path, context_tokens: int, num_choices: int) -> Task:
    chance = random.Random(1)
    with open_model(model) as opened:
        tokens = range(1, opened.shape.vocab_size)
    choices = [chance.choices(tokens, k=chance.randint(1, _LONGEST)) for _ in range(num_choices)]
    return Task(chance.choices(tokens, k=context_tokens), choices)


async def _compare(model: Path, device: str, slots: int, repeats: int, task: Task) -> None:
    """Run the ways in turns, so that what else the machine does slows all of them."""
    rounds = [[await _time(model, device, slots, task, way) for way in WAYS] for _ in range(repeats)]
    click.echo(f"{model.stem}, {slots} slots, {len(task.choices)} choices after {len(task.context)} tokens")
    click.echo("| way | seconds | times batched | context tokens run | greatest difference |")
    click.echo("|---|---|---|---|---|")
    batched = [timed[0] for timed in rounds]
    for way, timed in zip(WAYS, zip(*rounds, strict=True), strict=True):
        seconds = [one.seconds for one in timed]
        ratio = statistics.median(seconds) / statistics.median(one.seconds for one in batched)
        difference = max(one.difference(batched[0]) for one in timed)
        click.echo(
            f"| {way.name} | {statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f}) | {ratio:.1f} "
            f"| {timed[0].context_tokens_run(task.context)} | {difference:.1e} |"
        )
        if difference >= _BOUND:
            raise click.ClickException(f"a log-probability differs by {_BOUND} or more")


async def _time(model: Path, device: str, slots: int, task: Task, way: Way) -> Timed:
    cache = CacheConfig() if way.kept else None
    async with await Engine.load(model, LoadSettings(device, "none"), num_slots=slots, cache=cache) as engine:
        begun = time.perf_counter()
        scores = await score_choices(engine, task.context, task.choices, limit=way.limit)
        return Timed(time.perf_counter() - begun, scores)


if __name__ == "__main__":
    main()
