"""`rnn-engine bench`: measure how fast a model runs on a device, through the runner alone.

Steps are timed whole, from the tokens to the candidates on the host. What is not measured: sampling, text, HTTP.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from rnn_engine.cli.describe import describe_shape
from rnn_engine.cli.options import device_memory_option, device_option, lora_option, model_argument, weights_option
from rnn_engine.cli.progress import Report, progress_bar
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward import GpuRunner
from rnn_engine.loading.memory import plan_memory
from rnn_engine.loading.model import open_merged
from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.model import LoraChoice
from rnn_engine.types import ModelShape, Runner, TokenRun, run_step

_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What was measured; a figure means nothing without it."""

    model: str
    shape: ModelShape
    device: str
    weights: str
    repeats: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the result."""

    phase: str  # decode or prefill
    slots: int  # sequences that run at the same time
    tokens: int  # of one sequence in one repetition
    median_ms: float  # of one repetition: a step at decode, a whole prompt at prefill
    tokens_per_second: float  # over all sequences


def measure_decode(runner: Runner, slots: int, repeats: int, clock: Callable[[], float]) -> Measurement:
    """Measure steps in which each of `slots` sequences advances by one token."""
    for slot in range(slots):
        runner.write_state(slot, None)
    batch = [TokenRun(slot, [_token(runner.shape, slot)], rows=1) for slot in range(slots)]
    median = median_seconds(lambda: run_step(runner, batch), repeats, clock)
    return Measurement("decode", slots, 1, 1e3 * median, slots / median)


def measure_prefill(runner: Runner, length: int, repeats: int, clock: Callable[[], float]) -> Measurement:
    """Measure one prompt of `length` tokens, in steps as large as the runner takes."""
    prompt = [_token(runner.shape, position) for position in range(length)]
    parts = [prompt[start : start + runner.max_tokens] for start in range(0, length, runner.max_tokens)]
    runs = [TokenRun(0, part) for part in parts[:-1]] + [TokenRun(0, parts[-1], rows=1)]

    def run_prompt() -> None:
        runner.write_state(0, None)
        for run in runs:
            run_step(runner, [run])

    median = median_seconds(run_prompt, repeats, clock)
    return Measurement("prefill", 1, length, 1e3 * median, length / median)


def _token(shape: ModelShape, position: int) -> int:
    """Return some token id; the speed does not depend on which."""
    return (position * 31 + 1) % shape.vocab_size


def median_seconds(work: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """Return the median time of `work`, in seconds, after a warm-up."""
    for _ in range(_WARM_UP):
        work()
    seconds = []
    for _ in range(repeats):
        begun = clock()
        work()
        seconds.append(clock() - begun)
    return statistics.median(seconds)


def _parse_numbers(_context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InvalidRequestError(f"--{parameter.name}", text, "whole numbers from 1, as 1,8")
    return numbers


@click.command()
@model_argument
@device_option
@weights_option
@device_memory_option
@lora_option
@click.option("--slots", callback=_parse_numbers, default="1,8", show_default=True, help="Sequences at decode.")
@click.option("--lengths", callback=_parse_numbers, default="64", show_default=True, help="Prompts at prefill.")
@click.option("--repeats", type=click.IntRange(min=1), default=10, show_default=True, help="Timed runs a line.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")
def command(
    model: Path,
    device: str,
    weights: str | None,
    device_memory: int | None,
    loras: tuple[LoraChoice, ...],
    slots: list[int],
    lengths: list[int],
    repeats: int,
    as_json: bool,
) -> None:
    """Measure decode and prefill speed of a model on a device.

    Each line is the median of the timed runs after a warm-up.
    """
    with progress_bar("opening the model") as report:
        with open_merged(model, loras) as opened:
            size = RunnerSize(num_slots=max(slots))
            plan = plan_memory(opened, device, size, weights=weights, device_memory=device_memory)
            runner = load_runner(opened, device, weights=plan.weights, num_slots=max(slots), progress=report)
        with closing(runner):
            results = _measure(runner, slots, lengths, repeats, report)
    setting = Setting(model.name, runner.shape, *_device_and_weights(runner, plan.weights), repeats)
    if as_json:
        click.echo(json.dumps({**asdict(setting), "results": [asdict(line) for line in results]}, indent=2))
    else:
        _print_table(setting, results)


def _measure(
    runner: Runner, slots: Sequence[int], lengths: Sequence[int], repeats: int, report: Report
) -> list[Measurement]:
    total = len(slots) + len(lengths)
    results: list[Measurement] = []
    for count in slots:
        report(f"decode, {count} slot(s)", len(results), total)
        results.append(measure_decode(runner, count, repeats, time.perf_counter))
    for length in lengths:
        report(f"prefill, {length} tokens", len(results), total)
        results.append(measure_prefill(runner, length, repeats, time.perf_counter))
    return results


def _device_and_weights(runner: Runner, weights: str) -> tuple[str, str]:
    return (runner.device.info.name, weights) if isinstance(runner, GpuRunner) else ("cpu", "f32")


def _print_table(setting: Setting, results: Sequence[Measurement]) -> None:
    click.echo(f"{setting.model}: {describe_shape(setting.shape)}; weights {setting.weights}")
    click.echo(f"{setting.device}, median of {setting.repeats} runs")
    table = Table("phase", "slots", "tokens", "median ms", "tokens/s", box=None)
    for line in results:
        table.add_row(
            line.phase, str(line.slots), str(line.tokens), f"{line.median_ms:.2f}", f"{line.tokens_per_second:.1f}"
        )
    Console().print(table)
