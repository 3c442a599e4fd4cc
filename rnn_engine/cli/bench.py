"""`rnn-engine bench` and `rnn-engine tune-kernels`: measure a model's speed, and find its fastest kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from rnn_engine.bounds import TUNE_SECONDS, Kind, setting
from rnn_engine.cli.options import FiniteRange, bad_value, check_outputs, model_argument, settings_options
from rnn_engine.loading.settings import LoadSettings


def _parse_numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise bad_value(text, "whole numbers of at least 1, such as 1,8")
    return numbers


_NUMBERS = Kind(metavar="TEXT", parse=_parse_numbers)


@dataclass(frozen=True, slots=True)
class Runs:
    """What to measure, and how often."""

    slots: Sequence[int] = setting((1, 8), _NUMBERS, text="1,8").help("Numbers of sequences to decode.")
    lengths: Sequence[int] = setting((64,), _NUMBERS, text="64").help("Lengths of prompts in tokens.")
    repeats: int = setting(10, Kind(int, low=1)).help("Timed runs a line.")
    profile: bool = setting(False).help("Also time each kernel, and compare it with the device's peak speeds.")


@click.command()
@model_argument
@settings_options(LoadSettings, "device", "weights", "device_memory", "loras", "tune_seconds")
@settings_options(Runs)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write all figures and plots to one HTML file, with the device, its driver and limits, the kernels that were "
    "chosen for it, and the greatest difference from the processor's results: what others need to know of a GPU.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of tables.")
@click.pass_context
def bench_command(
    context: click.Context, runs: Runs, loading: LoadSettings, /, model: Path, report: Path | None, as_json: bool
) -> None:
    """Measure decode and prefill speed of a model on a device.

    Each line is the median of the timed runs after a warm-up.
    """
    from rnn_engine.cli.benchmark import measure, print_tables, write_report

    check_outputs(context, {"--report": report})
    benchmark = measure(
        model, loading, runs.slots, runs.lengths, runs.repeats, profile=runs.profile, reports_device=report is not None
    )
    if report is not None:
        write_report(benchmark, report)
    if as_json:
        click.echo(json.dumps(benchmark.as_json(), indent=2))
    else:
        print_tables(benchmark)


# `rnn-engine tune-kernels`: find the fastest kernels for a model's matrices.


@click.command()
@model_argument
@settings_options(LoadSettings, "device", "weights", "device_memory", "loras")
@click.option(
    "--seconds",
    type=FiniteRange(min=0, min_open=True),
    default=TUNE_SECONDS,
    help="The longest that the search may take. Ctrl-C ends it earlier; the best kernels found until then are kept.",
)
@click.option(
    "--half",
    is_flag=True,
    help="Also try kernels that multiply in f16, if the device can. They change the results of prompts by about 1e-3.",
)
def tune_kernels_command(loading: LoadSettings, /, model: Path, seconds: float, half: bool) -> None:
    """Find the fastest kernels for a model's matrices on a device.

    They are kept in the folder `kernels` of the user's cache folder for this device, driver and version of the
    kernels, and every later load uses them. The table shows the measured microseconds of a dispatch for each
    choice, and for the fixed one.
    """
    from rnn_engine.cli.benchmark import tune

    tune(model, loading, seconds=seconds, half=half)
