"""`python -m tools.bench.linearity`: time and memory by the length of the context, and time by layers and tokens.

A recurrent model's token costs the same after any context, and no more memory; a prompt and a step cost in proportion
to their tokens, a step in proportion to the layers. This measures it on small random models and fails where a figure
grows that should not, or lies too far from its line. Lines are fitted by the median of the slopes between all pairs of
points (Theil, Sen), so that single slow points do not move them.

What is measured by context is a request through the engine, with penalties, a stop string that never comes and the
cache of states; what is measured by layers and tokens are steps of the runner, the least of repeated ones. On a
software device of a machine that does other work too, take --clock processor: seconds of this process on any core.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing, closing
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Final

import click

from rnn_engine.demo import tokenizer_path
from rnn_engine.engine import Engine
from rnn_engine.loading.runner import load_runner
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest, Started, TextDelta
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.types import Runner, TokenRun, run_step
from tests.support.models import random_model, save_safetensors, tiny_shape
from tools.bench.load_unload import device_megabytes, resident_megabytes

_VOCAB: Final = 2048  # has room for the ids of the demo model's tokenizer
_WINDOWS: Final = 100
_DECODE_STEPS: Final = 10  # that are timed as one
_LAYERS: Final = (1, 2, 4, 8, 12)
_STEP_TOKENS: Final = (64, 96, 128, 160, 192, 224, 256)
_PROMPT_PARTS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_MOST_GROWTH: Final = 0.1  # of time or memory over the whole context
_MOST_RESIDUAL: Final = 0.25

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points of positive values."""

    start: float
    slope: float
    first: float  # the fitted value at the first point
    last: float
    typical_residual: float  # the median distance of a point from the line, in parts of the line's value there
    greatest_residual: float

    @property
    def growth(self) -> float:
        """From the first to the last point, in parts of the first."""
        return self.last / self.first - 1


def fit_line(places: Sequence[float], values: Sequence[float]) -> Line:
    """Fit a line through at least two points, whose places ascend."""
    points = list(zip(places, values, strict=True))
    slope = median((two[1] - one[1]) / (two[0] - one[0]) for one, two in combinations(points, 2))
    start = median(value - slope * place for place, value in points)
    residuals = [abs(value / (start + slope * place) - 1) for place, value in points]
    first, last = (start + slope * place for place in (places[0], places[-1]))
    return Line(start, slope, first, last, median(residuals), max(residuals))


@click.command()
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--context", default=100_000, show_default=True, help="Tokens of the longest context.")
@click.option(
    "--repeats", default=5, show_default=True, help="Turns of the steps of each size, of which the fastest counts."
)
@click.option("--clock", "clock_name", type=click.Choice(["wall", "processor"]), default="wall", show_default=True)
def main(device: str, context: int, repeats: int, clock_name: str) -> None:
    """Print the figures with their fits; exit with an error where one grows or bends."""
    clock = time.perf_counter if clock_name == "wall" else time.process_time
    click.echo(f"{device}, {clock_name} clock")
    with tempfile.TemporaryDirectory() as folder:
        model = save_safetensors(
            random_model(tiny_shape(layers=1, vocab=_VOCAB), seed=1), Path(folder) / "model.safetensors"
        )
        faults = asyncio.run(_by_context(model, device, context, clock))
    faults += _by_size(device, repeats, clock)
    if faults:
        raise click.ClickException(f"not as a recurrent model should be: {', '.join(faults)}")


async def _by_context(model: Path, device: str, context: int, clock: Clock) -> list[str]:
    """Measure tokens and memory along one long answer, then prompts of several lengths; return what is at fault."""
    async with await Engine.load(model, LoadSettings(device, str(tokenizer_path())), num_slots=1) as engine:
        places, times, host, held = [], [], [], []
        begun = clock()
        async for place in _answer(engine, context, max(context // _WINDOWS, 1)):
            now = clock()
            places.append(place)
            times.append(now - begun)
            host.append(resident_megabytes())
            held.append(device_megabytes(device))
            begun = now
        window = places[1] - places[0]
        faults = find_growing("ms a token", places, [1e3 * seconds / window for seconds in times])
        faults += find_growing("host memory, MB", places, host)
        if held[0]:
            faults += find_growing("device memory, MB", places, held)
        lengths = [max(int(part * context), 1) for part in _PROMPT_PARTS]
        seconds = [await _first_token(engine, length, clock) for length in lengths]
    return faults + find_bent("ms of a prompt by tokens", lengths, [1e3 * each for each in seconds])


async def _answer(engine: Engine, num_tokens: int, window: int) -> AsyncIterator[int]:
    """Yield the number of tokens that were generated, after each window of them but the first, which warms up."""
    sampling = SamplingParams(seed=1, presence_penalty=0.5, frequency_penalty=0.5)
    request = GenerateRequest(
        [1], max_tokens=num_tokens + window, stop_tokens=(), stop=(b"\xff never \xff",), sampling=sampling
    )
    done = 0
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                before, done = done, done + len(event.tokens)
                if done // window > max(before // window, 1):
                    yield done


async def _first_token(engine: Engine, length: int, clock: Clock) -> float:
    """Return the seconds until a prompt has been run, of which nothing is kept yet."""
    prompt = [(place * 31 + length) % _VOCAB for place in range(length)]
    begun = clock()
    async with aclosing(engine.generate(GenerateRequest(prompt, max_tokens=0, stop_tokens=()))) as events:
        async for event in events:
            if isinstance(event, Started):
                return clock() - begun
    raise AssertionError("a request that did not start")


def _by_size(device: str, repeats: int, clock: Clock) -> list[str]:
    """Measure steps of models of several depths, and steps of several lengths, in turns; return what is at fault."""
    with ExitStack() as stack:
        runners = [stack.enter_context(closing(_load(layers, device))) for layers in _LAYERS]
        steps = [partial(_run_steps, runner, 1, _DECODE_STEPS) for runner in runners]
        steps += [partial(_run_steps, runner, _STEP_TOKENS[-1], 1) for runner in runners]
        steps += [partial(_run_steps, runners[-1], count, 1) for count in _STEP_TOKENS]
        for step in steps:
            step()
        rounds = [[_milliseconds(step, clock) for step in steps] for _ in range(repeats)]
    least = [min(times) for times in zip(*rounds, strict=True)]
    depths = len(_LAYERS)
    return [
        *find_bent(f"ms of {_DECODE_STEPS} decode steps by layers", _LAYERS, least[:depths]),
        *find_bent(f"ms of a step of {_STEP_TOKENS[-1]} tokens by layers", _LAYERS, least[depths : 2 * depths]),
        *find_bent(f"ms of a step of {_LAYERS[-1]} layers by tokens", _STEP_TOKENS, least[2 * depths :]),
    ]


def _load(layers: int, device: str) -> Runner:
    model = random_model(tiny_shape(layers=layers, width=256, head_size=64, vocab=_VOCAB), seed=1)
    return load_runner(model, device, num_slots=1, max_tokens=_STEP_TOKENS[-1])


def _run_steps(runner: Runner, num_tokens: int, num_steps: int) -> None:
    batch = [TokenRun(0, [(place * 31 + 1) % _VOCAB for place in range(num_tokens)], rows=1)]
    for _ in range(num_steps):
        run_step(runner, batch)


def _milliseconds(work: Callable[[], None], clock: Clock) -> float:
    begun = clock()
    work()
    return 1e3 * (clock() - begun)


def find_growing(what: str, places: Sequence[float], values: Sequence[float]) -> list[str]:
    """Print the fit of values by context; return `what` where they grow."""
    line = fit_line(places, values)
    click.echo(
        f"{what}: {line.first:.4g} after {places[0]} tokens, {line.last:.4g} after {places[-1]} "
        f"({line.growth:+.1%}; residual {line.typical_residual:.1%})"
    )
    return [what] if line.growth > _MOST_GROWTH else []


def find_bent(what: str, places: Sequence[float], values: Sequence[float]) -> list[str]:
    """Print the fit of values that should lie on a line; return `what` where one does not."""
    line = fit_line(places, values)
    click.echo(
        f"{what}: {line.start:.3g} + {line.slope:.3g} each, from {places[0]} to {places[-1]} "
        f"(residual {line.typical_residual:.1%}, greatest {line.greatest_residual:.1%})"
    )
    return [what] if line.greatest_residual > _MOST_RESIDUAL else []


if __name__ == "__main__":
    main()
