"""`rnn-engine models`, `inspect` and `convert`: list models, describe one, and convert one to another file format."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rnn_engine.bounds import STORED
from rnn_engine.cli.options import (
    Parsed,
    check_outputs,
    describe_shape,
    find_model,
    model_argument,
    settings_options,
    slots_option,
)
from rnn_engine.convert import FOLDER_TITLE, TITLES
from rnn_engine.errors import ModelError
from rnn_engine.hub import KNOWN, list_local
from rnn_engine.llm.progress import progress_bar
from rnn_engine.loading.settings import LoadSettings

if TYPE_CHECKING:
    from rnn_engine.loading.memory import Inspection, Need


@click.command()
def models_command() -> None:
    """List the models on this computer, and the short names of others.

    The models on this computer are those of `rnn-engine pull` and those in Hugging Face's cache.
    """
    from rnn_engine.loading.memory import in_words

    rows = [(each.repository, _version(each.path), in_words(each.num_bytes), str(each.path)) for each in list_local()]
    if rows:
        rows.insert(0, ("repository", "RWKV", "size", "path"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:  # not rich's table, which would cut the paths
            click.echo("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        click.echo("no models on this computer")
    click.echo("\n`rnn-engine pull NAME` fetches the newest file of:")
    for name, wanted in KNOWN.items():
        click.echo(f"{name:18} {wanted}")


def _version(path: Path) -> str:
    """Return the RWKV version of the model in the file `path`, or "-" if it has no model that can be served."""
    from rnn_engine.loading.runner import open_model

    try:
        with open_model(path) as model:
            return model.shape.version
    except ModelError:
        return "-"


@click.command()
@model_argument
@slots_option(8)
@settings_options(LoadSettings, "device", "split", "tokenizer", "device_memory", "loras")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of text.")
def inspect_command(loading: LoadSettings, /, model: Path, slots: int, as_json: bool) -> None:
    """Show what a model file holds and on which devices it fits.

    Reads no weights. The memory on each device is shown for every format of --weights: the weights, the states of the
    slots, the states that the cache keeps there (as far as there is room), and the buffers of a step. With --lora, the
    model is shown after the merge; weights that the LoRA changes are float32. If --device names several, the layers on
    each are shown, too.
    """
    from rnn_engine.loading.memory import inspect_model
    from rnn_engine.loading.placement import split_device
    from rnn_engine.loading.runner import open_model

    with open_model(model, loading.loras) as opened:
        device = split_device(loading.device, loading.split, opened.shape.num_layers)
        found = inspect_model(opened, loading.tokenizer, slots, loading.device_memory, device)
        title = describe_shape(opened.shape)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        _print(title, found)


def _print(title: str, found: Inspection) -> None:
    from rich.console import Console
    from rich.table import Table

    from rnn_engine.loading.memory import in_words

    click.echo(f"{found.file}: {title}")
    types = ", ".join(f"{count} {dtype}" for dtype, count in found.tensors.items())
    click.echo(f"file: {in_words(found.file_bytes)}, {found.parameters:,} parameters; tensors: {types}")
    click.echo(f"tokenizer: {found.tokenizer}")
    click.echo(f"tuned state inside: {'yes' if found.has_tuned_state else 'no'}")
    click.echo(f"state of a sequence: {in_words(found.state_bytes)}")
    for part in found.parts:
        needed = "" if part.num_bytes is None else f": {in_words(part.num_bytes)}"
        layers = f"layers {part.first_layer} to {part.last_layer}"
        if part.first_layer == part.last_layer:
            layers = f"layer {part.last_layer}"
        click.echo(f"{layers} on {part.device}{needed}")
    for device in found.devices:
        memory = "unknown; set --device-memory" if device.available_bytes is None else in_words(device.available_bytes)
        click.echo(f"\n{device.device}; memory for a model: {memory}")
        if device.refusal is not None:
            click.echo(f"can't run the model: {device.refusal}")
            continue
        table = Table("format", "weights", f"{found.slots} slots", "kept states", "buffers", "in all", "", box=None)
        for need in device.needs:
            sizes = (need.weight_bytes, need.slot_bytes, need.kept_bytes, need.buffer_bytes, need.most_bytes)
            table.add_row(need.weights, *map(in_words, sizes), _verdict(need, device.available_bytes))
        Console().print(table)


def _verdict(need: Need, available: int | None) -> str:
    """Say if a model fits into `available` bytes of a device; None stands for an unknown number."""
    if available is None:
        return "?"
    if need.num_bytes > available:
        return "too large"
    return "fits" if need.most_bytes <= available else "fits, keeps fewer"


_FORMATS = "; ".join(f"{end}: {title}" for end, title in TITLES.items())


def _parse_weights(text: str) -> str:
    from rnn_engine.forward import WeightChoice

    WeightChoice.parse(text)
    return text


@click.command(
    help=f"""Write a model in another file format.

    SRC is any model that the engine reads, or the name of one that was pulled. The ending of DST's name selects the
    format: {_FORMATS}; any other name, or one with a slash at its end: {FOLDER_TITLE}.
    """
)
@click.argument("source", type=Parsed(find_model), metavar="SRC")
@click.argument("name", type=click.Path(), metavar="DST")
@click.option(
    "--weights",
    default=STORED,
    metavar="FORMAT[,CLASS=FORMAT...]",
    type=Parsed(_parse_weights),
    help="The format of the weights to write, as in `rnn-engine serve --weights`; stored keeps that of SRC.",
)
@settings_options(LoadSettings, "loras")
@click.option(
    "--force",
    is_flag=True,
    help="Replace DST if it is a file, or a folder that `convert` wrote and that has not changed since.",
)
@click.pass_context
def convert_command(
    context: click.Context, loading: LoadSettings, /, source: Path, name: str, weights: str, force: bool
) -> None:
    from rnn_engine.convert.convert import convert_model, model_bytes
    from rnn_engine.loading.memory import in_words
    from rnn_engine.loading.runner import open_model

    context.params["name"] = target = Path(name)  # which has no slash at its end
    check_outputs(context, {"DST": target})
    with open_model(source, loading.loras) as model, progress_bar("writing") as report:
        title = convert_model(model, name, weights, force=force, progress=report)
        shape = describe_shape(model.shape)
    with open_model(target) as written:
        types = Counter(info.block_type or info.dtype.name for info in written.tensors.values()).most_common()
    click.echo(f"{target}: {title}")
    click.echo(f"{shape}; tensors: {', '.join(f'{count} {name}' for name, count in types)}")
    click.echo(f"{in_words(model_bytes(target))}, from {in_words(model_bytes(source))}")
    folders = (path if path.is_dir() else path.parent for path in (source, target))
    beside, missing = (folder / "tokenizer.json" for folder in folders)
    if beside.is_file() and not missing.exists() and target.suffix.lower() != ".gguf":
        click.echo(f"hint: the tokenizer is a file of its own; copy {beside} to {missing.parent}")
