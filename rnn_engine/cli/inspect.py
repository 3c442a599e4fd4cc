"""`rnn-engine inspect`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from rnn_engine.cli.describe import describe_shape
from rnn_engine.cli.options import device_memory_option, lora_option, model_argument, slots_option, tokenizer_option
from rnn_engine.loading.inspection import Inspection, inspect_model
from rnn_engine.loading.memory import in_words
from rnn_engine.loading.model import open_merged
from rnn_engine.model import LoraChoice

_FITS = {True: "fits", False: "too large", None: "?"}


@click.command()
@model_argument
@slots_option(8)
@tokenizer_option
@device_memory_option
@lora_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of text.")
def command(
    model: Path, slots: int, tokenizer: str, device_memory: int | None, loras: tuple[LoraChoice, ...], as_json: bool
) -> None:
    """Show what a model file holds and where it fits.

    Reads no weights. Memory is told for every format of --weights, without the cache's spare slots. Given
    a --lora, the model is told as it is with it; weights that it changes are float32.
    """
    with open_merged(model, loras) as opened:
        found = inspect_model(opened, tokenizer, slots, device_memory)
        title = describe_shape(opened.shape)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        _print(title, found)


def _print(title: str, found: Inspection) -> None:
    click.echo(f"{found.file}: {title}")
    types = ", ".join(f"{count} {dtype}" for dtype, count in found.tensors.items())
    click.echo(f"{in_words(found.file_bytes)}, {found.parameters:,} parameters; tensors: {types}")
    click.echo(f"tokenizer: {found.tokenizer}")
    click.echo(f"tuned state inside: {'yes' if found.has_tuned_state else 'no'}")
    click.echo(f"state of a sequence: {in_words(found.state_bytes)}")
    for device in found.devices:
        memory = (
            "not known; give --device-memory" if device.available_bytes is None else in_words(device.available_bytes)
        )
        click.echo(f"\n{device.device}; memory for a model: {memory}")
        if device.refusal is not None:
            click.echo(f"can't run it: {device.refusal}")
            continue
        table = Table("weights", f"memory, {found.slots} slots", "", box=None)
        for need in device.needs:
            table.add_row(need.weights, in_words(need.num_bytes), _FITS[need.fits])
        Console().print(table)
