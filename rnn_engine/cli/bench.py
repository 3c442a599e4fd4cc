"""`rnn-engine bench` and `rnn-engine tune-kernels`: measure a model's speed, and find its fastest kernels."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rnn_engine.bounds import TUNE_SECONDS
from rnn_engine.cli.options import FiniteRange, Parsed, bad_value, check_outputs, model_argument, settings_options
from rnn_engine.loading.settings import LoadSettings


def _parse_numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise bad_value(text, "whole numbers of at least 1, such as 1,8")
    return numbers


@click.command()
@model_argument
@settings_options(LoadSettings, "device", "weights", "device_memory", "loras", "tune_seconds")
@click.option(
    "--slots", type=Parsed(_parse_numbers), default="1,8", metavar="TEXT", help="Numbers of sequences to decode."
)
@click.option(
    "--lengths", type=Parsed(_parse_numbers), default="64", metavar="TEXT", help="Lengths of prompts in tokens."
)
@click.option("--repeats", type=click.IntRange(min=1), default=10, help="Timed runs a line.")
@click.option("--profile", is_flag=True, help="Also time each kernel, and compare it with the device's peak speeds.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write all figures and plots to one HTML file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of tables.")
@click.pass_context
def bench_command(
    context: click.Context,
    loading: LoadSettings,
    /,
    model: Path,
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
    from rnn_engine.cli.benchmark import measure, print_tables, write_report

    check_outputs(context, {"--report": report})
    benchmark = measure(model, loading, slots=slots, lengths=lengths, repeats=repeats, profile=profile)
    if report is not None:
        write_report(benchmark, report)
    if as_json:
        click.echo(json.dumps(benchmark.as_json(), indent=2))
    else:
        print_tables(benchmark)


# `rnn-engine tune-kernels`: find the fastest kernels for a model's matrices, and show or delete the stored choices.


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
    "--exhaustive", is_flag=True, help="Measure all variants, not only the promising ones; this may take an hour."
)
@click.option(
    "--half",
    is_flag=True,
    help="Also try kernels that multiply in f16, if the device can. They change the results of prompts by about 1e-3.",
)
@click.option("--show", is_flag=True, help="Show the choices that are kept for all devices, without a search.")
@click.option("--forget", is_flag=True, help="Delete the choices that are kept for all devices, without a search.")
def tune_kernels_command(
    loading: LoadSettings, /, model: Path, seconds: float, exhaustive: bool, half: bool, show: bool, forget: bool
) -> None:
    """Find the fastest kernels for a model's matrices on a device.

    They are kept in the user's cache folder for this device, driver and version of the kernels, and every later load
    uses them. For each choice, the table shows the predicted and the measured time of a dispatch in microseconds,
    beside those of the fixed choice. On a software device, a time is that of all processors together.
    """
    from rnn_engine.cli.tuning import forget_choices, show_choices, tune

    if show:
        show_choices()
    if forget:
        forget_choices()
    if not (show or forget):
        tune(model, loading, seconds=seconds, exhaustive=exhaustive, half=half)
