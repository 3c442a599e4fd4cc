"""`rnn-engine tune`: find the fastest kernels for a model's matrices on a device, and show or delete what is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rnn_engine.atomic_file import delete_file
from rnn_engine.cli.options import device_memory_option, device_option, lora_option, model_argument, weights_option
from rnn_engine.cli.progress import progress_bar
from rnn_engine.cli.sizes import FiniteRange
from rnn_engine.errors import DeviceError
from rnn_engine.forward.tuner import Choice
from rnn_engine.forward.tuning import MatMulClass
from rnn_engine.loading.kernel_choices import DEFAULT_SECONDS, TuneOrder, kept_records, kernels_version, read_choices
from rnn_engine.loading.memory import plan_memory
from rnn_engine.loading.model import open_merged
from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.model import LoraChoice


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
    help="How long the search may take; Ctrl-C ends it, too. The best until then are kept.",
)
@click.option(
    "--exhaustive", is_flag=True, help="Measure every variant, which may take an hour, and not the likely ones."
)
@click.option(
    "--half",
    is_flag=True,
    help="Also try products in f16, where the device has them: prompts then differ from other kernels by some 1e-3.",
)
@click.option("--show", is_flag=True, help="Show what is kept for all devices, and search nothing.")
@click.option("--forget", is_flag=True, help="Delete what is kept for all devices.")
def command(
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
    takes them. Of each choice the table shows what a model of cost predicts and what was measured, in microseconds of a
    dispatch, beside the fixed choice; on a software device that is the time of all processors together.
    """
    if show or forget:
        for path, record in kept_records():
            if show:
                _show_record(path, record)
            if forget:
                delete_file(path)
        return
    if device == "cpu":
        raise DeviceError("numpy has no kernels to choose from; expected another device than 'cpu'")
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
        click.echo(f"{path}: damaged, and so left alone\n")
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
