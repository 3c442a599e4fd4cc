"""Find the fastest kernels for a model's matrices on a device, and show or delete the choices that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rnn_engine.errors import DeviceError
from rnn_engine.files import delete_file
from rnn_engine.forward.tuner import Choice
from rnn_engine.forward.tuning import MatMulClass
from rnn_engine.llm.progress import progress_bar
from rnn_engine.loading.kernel_choices import TuneOrder, kept_records, kernels_version, read_choices
from rnn_engine.loading.memory import plan_memory
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.loading.settings import LoadSettings


def tune(model: Path, loading: LoadSettings, *, seconds: float, exhaustive: bool, half: bool) -> None:
    """Search for the fastest kernels, and show the choices. Raises DeviceError if the device has none."""
    device = loading.device
    if device == "cpu":
        raise DeviceError("the device 'cpu' has no kernels to choose from; choose another --device")
    found: dict[tuple[MatMulClass, int], Choice] = {}
    order = TuneOrder(seconds, anew=True, exhaustive=exhaustive, half=half, on_found=found.update)
    with progress_bar("opening the model") as progress, open_model(model, loading.loras) as opened:
        memory = loading.device_memory
        plan = plan_memory(opened, device, RunnerSize(), weights=loading.weights, device_memory=memory)
        load_runner(opened, device, weights=plan.weights, tune=order, progress=progress).close()
    _show_choices(found.values())


def show_choices() -> None:
    """Show the choices that are kept for all devices."""
    for path, record in kept_records():
        _show_record(path, record)


def forget_choices() -> None:
    """Delete the choices that are kept for all devices."""
    for path, _ in kept_records():
        delete_file(path)


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
