"""`rnn-engine bench` and `rnn-engine tune`: measure a model's speed on a device, and find its fastest kernels.

`bench` measures through the runner alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rnn_engine.cli.benchmark import (
    Benchmark,
    Measurement,
    Setting,
    StepProfile,
    measure_decode,
    measure_prefill,
    print_tables,
    profile_decode,
    profile_prefill,
    write_report,
)
from rnn_engine.cli.options import (
    FiniteRange,
    Report,
    device_memory_option,
    device_option,
    lora_option,
    model_argument,
    progress_bar,
    tune_option,
    weights_option,
)
from rnn_engine.errors import DeviceError, InvalidRequestError
from rnn_engine.files import delete_file
from rnn_engine.forward import GpuRunner
from rnn_engine.forward.tuner import Choice
from rnn_engine.forward.tuning import MatMulClass
from rnn_engine.gpu import measure_peaks
from rnn_engine.loading.kernel_choices import DEFAULT_SECONDS, TuneOrder, kept_records, kernels_version, read_choices
from rnn_engine.loading.memory import plan_memory
from rnn_engine.loading.runner import RunnerSize, load_runner, open_merged
from rnn_engine.model import LoraChoice
from rnn_engine.types import Runner


def _parse_numbers(_context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InvalidRequestError(f"--{parameter.name}", text, "whole numbers of at least 1, such as 1,8")
    return numbers


@click.command()
@model_argument
@device_option
@weights_option
@device_memory_option
@tune_option
@lora_option
@click.option(
    "--slots", callback=_parse_numbers, default="1,8", show_default=True, help="Numbers of sequences to decode."
)
@click.option(
    "--lengths", callback=_parse_numbers, default="64", show_default=True, help="Lengths of prompts in tokens."
)
@click.option("--repeats", type=click.IntRange(min=1), default=10, show_default=True, help="Timed runs a line.")
@click.option("--profile", is_flag=True, help="Also time each kernel, and compare it with the device's peak speeds.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write all figures and plots to one HTML file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of tables.")
def bench_command(
    model: Path,
    device: str,
    weights: str | None,
    device_memory: int | None,
    tune_seconds: float | None,
    loras: tuple[LoraChoice, ...],
    slots: list[int],
    lengths: list[int],
    repeats: int,
    profile: bool,
    report: Path | None,
    as_json: bool,
) -> None:
    """Measure decode and prefill speed of a model on a device.

    Each line is the median of the timed runs after a warm-up.
    """
    with progress_bar("opening the model") as progress:
        with open_merged(model, loras) as opened:
            size = RunnerSize(num_slots=max(slots))
            plan = plan_memory(opened, device, size, weights=weights, device_memory=device_memory)
            runner = load_runner(
                opened,
                device,
                weights=plan.weights,
                num_slots=max(slots),
                tune=TuneOrder(tune_seconds),
                progress=progress,
            )
        with closing(runner):
            setting = Setting(model.name, runner.shape, *_device_and_weights(runner, plan.weights), repeats)
            profiled = _profiled(runner) if profile else None
            results = _measure(runner, slots, lengths, repeats, progress)
            benchmark = Benchmark(setting, results)
            if profiled is not None:
                progress("measuring the device's peak speeds", 0, 1)
                peaks = measure_peaks(profiled.device)
                benchmark = Benchmark(setting, results, peaks, _profile(profiled, slots, lengths, repeats, progress))
    if report is not None:
        write_report(benchmark, report)
    if as_json:
        click.echo(json.dumps(benchmark.as_json(), indent=2))
    else:
        print_tables(benchmark)


def _profiled(runner: Runner) -> GpuRunner:
    if not isinstance(runner, GpuRunner):
        raise DeviceError("--profile times GPU kernels, and the device 'cpu' has none; choose another --device")
    if not runner.device.has_timestamps:
        raise DeviceError(f"--profile needs timestamp queries, which {runner.device.info.name} does not have")
    return runner


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


def _profile(
    runner: GpuRunner, slots: Sequence[int], lengths: Sequence[int], repeats: int, report: Report
) -> list[StepProfile]:
    total = len(slots) + len(lengths)
    profiles: list[StepProfile] = []
    for count in slots:
        report(f"kernels of decode, {count} slot(s)", len(profiles), total)
        profiles.append(profile_decode(runner, count, repeats))
    for length in lengths:
        report(f"kernels of prefill, {length} tokens", len(profiles), total)
        profiles.append(profile_prefill(runner, length, repeats))
    return profiles


def _device_and_weights(runner: Runner, weights: str) -> tuple[str, str]:
    return (runner.device.info.name, weights) if isinstance(runner, GpuRunner) else ("cpu", "f32")


# `rnn-engine tune`: find the fastest kernels for a model's matrices on a device, and show or delete the stored choices.


@click.command()
@model_argument
@device_option
@weights_option
@device_memory_option
@lora_option
@click.option(
    "--seconds",
    type=FiniteRange(min=0, min_open=True),
    default=DEFAULT_SECONDS,
    show_default=True,
    help="The longest that the search may take. Ctrl-C ends it earlier; the best kernels found until then are kept.",
)
@click.option(
    "--exhaustive", is_flag=True, help="Measure all variants, not only the promising ones; this may take an hour."
)
@click.option(
    "--half",
    is_flag=True,
    help="Also try kernels that multiply in f16, if the device can. They change the results of prompts by about 1e-3.",
)
@click.option("--show", is_flag=True, help="Show the choices that are kept for all devices, without a search.")
@click.option("--forget", is_flag=True, help="Delete the choices that are kept for all devices, without a search.")
def tune_command(
    model: Path,
    device: str,
    weights: str | None,
    device_memory: int | None,
    loras: tuple[LoraChoice, ...],
    seconds: float,
    exhaustive: bool,
    half: bool,
    show: bool,
    forget: bool,
) -> None:
    """Find the fastest kernels for a model's matrices on a device.

    They are kept in the user's cache folder for this device, driver and version of the kernels, and every later load
    uses them. For each choice, the table shows the predicted and the measured time of a dispatch in microseconds,
    beside those of the fixed choice. On a software device, a time is that of all processors together.
    """
    if show or forget:
        for path, record in kept_records():
            if show:
                _show_record(path, record)
            if forget:
                delete_file(path)
        return
    if device == "cpu":
        raise DeviceError("the device 'cpu' has no kernels to choose from; choose another --device")
    found: dict[tuple[MatMulClass, int], Choice] = {}
    order = TuneOrder(seconds, anew=True, exhaustive=exhaustive, half=half, on_found=found.update)
    with progress_bar("opening the model") as progress, open_merged(model, loras) as opened:
        plan = plan_memory(opened, device, RunnerSize(), weights=weights, device_memory=device_memory)
        load_runner(opened, device, weights=plan.weights, tune=order, progress=progress).close()
    _show_choices(found.values())


def _show_record(path: Path, record: Mapping[str, Any] | None) -> None:
    try:
        choices = list(read_choices(record or {}))
    except (KeyError, TypeError, ValueError, AttributeError):
        click.echo(f"{path}: damaged, so it is not used\n")
        return
    assert record is not None
    now = "" if record["kernels"] == kernels_version() else ", of another version of rnn-engine"
    click.echo(f"{record['device']} ({record['backend']}, {record['driver']}){now}\n{path}")
    _show_choices(choices)


def _show_choices(choices: Iterable[Choice]) -> None:
    table = Table(
        "matrices", "tokens", "kernel", "predicted us", "measured us", "fixed choice", "its us", "gain", box=None
    )
    for choice in sorted(choices, key=lambda choice: (choice.tokens, choice.kind)):
        table.add_row(
            str(choice.kind),
            str(choice.tokens),
            str(choice.variant),
            f"{1e6 * choice.predicted:.0f}",
            f"{1e6 * choice.measured:.0f}",
            str(choice.default),
            f"{1e6 * choice.default_measured:.0f}",
            f"{choice.gain:.2f}",
        )
    Console(width=max(160, Console().width)).print(table)
