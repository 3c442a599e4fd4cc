"""`python -m tools.bench.prefixes`: measure what kept states save, and check that they change no result.

Every warm answer is held against that of an engine that keeps nothing: the same tokens, and log-probabilities that
differ by less than a thousandth. Everything runs through the engine that the server has.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings
from states.cache.config import CacheConfig
from tools.bench.ask import Answer, ask
from tools.bench.model_files import DEMO, NAMES, find_model
from tools.bench.prefix_cases import Draw, Warm, evicted_cases, kept_cases, restarted_case, small_tiers
from tools.bench.shifted import measure_shifted

_BOUND = 1e-3  # of a log-probability


@click.command()
@click.option("--models", default=DEMO, show_default=True, help=f"Any of {', '.join(NAMES)}.")
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--prefix", default=1000, show_default=True, help="Tokens that are shared.")
@click.option("--repeats", default=3, show_default=True, help="Times that each case is run, with other tokens.")
@click.option("--shifted/--no-shifted", default=False, help="Also the hard case with 64 prompts.")
def main(models: str, device: str, prefix: int, repeats: int, shifted: bool) -> None:
    """Measure time to first token with kept states and without."""
    with tempfile.TemporaryDirectory() as folder:
        for name in models.split(","):
            model = find_model(name, Path(folder))
            bench = Bench(model, device, Path(folder) / f"states of {name}")
            asyncio.run(bench.run(prefix, repeats, shifted))


class Bench:
    """One model on one device."""

    def __init__(self, model: Path, device: str, folder: Path) -> None:
        self._model = model
        self._device = device
        self._folder = folder

    async def run(self, prefix: int, repeats: int, shifted: bool) -> None:
        async with self._engine(None) as engine:
            vocab_size = engine.info.shape.vocab_size
            small = [small_tiers(engine.info, self._folder / str(number)) for number in range(repeats)]
            click.echo(f"{engine.info.model} {engine.info.weights} on {engine.info.device}, 1 of 2 slots in use")
        draw = _drawer(vocab_size)
        prefixes = [draw(prefix) for _ in range(repeats)]
        warm = await self._measure_warm(prefixes, draw, small)
        _report(warm, await self._measure_cold(warm))
        if shifted:
            await self._measure_shifted(draw)

    async def _measure_warm(self, prefixes: list[list[int]], draw: Draw, small: list[CacheConfig]) -> list[Warm]:
        warm = []
        async with self._engine(CacheConfig()) as engine:
            for prefix in prefixes:
                warm += [case async for case in kept_cases(engine, prefix, draw)]
        for prefix, config in zip(prefixes, small, strict=True):
            async with self._engine(config) as engine:
                warm += [case async for case in evicted_cases(engine, prefix, draw)]
            async with self._engine(config) as engine:
                warm.append(await restarted_case(engine, prefix))
        return warm

    async def _measure_cold(self, warm: list[Warm]) -> dict[tuple[int, ...], Answer]:
        """Return the answers of an engine that keeps nothing, by prompt."""
        async with self._engine(None) as engine:
            return {prompt: await ask(engine, prompt) for prompt in {tuple(case.prompt) for case in warm}}

    async def _measure_shifted(self, draw: Draw) -> None:
        async with self._engine(CacheConfig(), num_slots=8) as engine:
            outcomes = await measure_shifted(engine, draw)
        click.echo("| arrival | hits | all that is shared saved | tokens saved | tokens run | least |")
        click.echo("|---|---|---|---|---|---|")
        for one in outcomes:
            click.echo(
                f"| {one.arrival} | {one.hits} of {one.prompts} | {one.saves_all_shared} of {one.prompts} "
                f"| {one.tokens_saved} | {one.tokens_run} | {one.least_tokens} |"
            )

    @asynccontextmanager
    async def _engine(self, cache: CacheConfig | None, num_slots: int = 2) -> AsyncIterator[Engine]:
        engine = await Engine.load(
            self._model, LoadSettings(self._device, "none"), num_slots=num_slots, max_queued=64, cache=cache
        )
        async with engine:
            yield engine


def _report(warm: list[Warm], cold: dict[tuple[int, ...], Answer]) -> None:
    cases: defaultdict[str, list[tuple[Warm, Answer]]] = defaultdict(list)
    for case in warm:
        cases[case.case].append((case, cold[tuple(case.prompt)]))
    click.echo(
        "| case | tokens, of them saved | state was on | cold ms | warm ms | cold / warm | greatest difference |"
    )
    click.echo("|---|---|---|---|---|---|---|")
    missed = False
    for name, pairs in cases.items():
        case = pairs[0][0]
        before = [1e3 * answer.first_token for _, answer in pairs]
        after = [1e3 * one.answer.first_token for one, _ in pairs]
        difference = max(one.answer.difference(answer) for one, answer in pairs)
        missed |= difference >= _BOUND
        click.echo(
            f"| {name} | {len(case.prompt)}, {case.answer.cached_tokens} | {case.tier} | {_spread(before)} "
            f"| {_spread(after)} | {statistics.median(before) / statistics.median(after):.0f} | {difference:.1e} |"
        )
    if missed:
        raise click.ClickException(f"a log-probability differs by {_BOUND} or more")


def _spread(milliseconds: list[float]) -> str:
    return f"{statistics.median(milliseconds):.1f} ({min(milliseconds):.1f}-{max(milliseconds):.1f})"


def _drawer(vocab_size: int) -> Draw:
    chance = random.Random(1)
    return lambda count: chance.choices(range(1, vocab_size), k=count)


if __name__ == "__main__":
    main()
