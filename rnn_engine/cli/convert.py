"""`rnn-engine convert`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from rnn_engine.cli.describe import describe_shape
from rnn_engine.cli.options import lora_option
from rnn_engine.cli.progress import progress_bar
from rnn_engine.convert.convert import FILE_FORMATS, FOLDER_TITLE, convert_model, model_bytes
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.weight_choice import STORED, WeightChoice
from rnn_engine.loading.memory import in_words
from rnn_engine.loading.model import open_merged, open_model
from rnn_engine.model import LoraChoice

_FORMATS = "; ".join(f"{end}: {file_format.title}" for end, file_format in FILE_FORMATS.items())


def _weights(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        WeightChoice.parse(value)
    except InvalidRequestError as error:
        raise click.BadParameter(f"{value!r} is not allowed; expected {error.allowed}") from None
    return value


@click.command(
    help=f"""Write a model in another file format.

    SRC is any model that the engine reads. The end of DST's name says what is written: {_FORMATS}; a name without an
    ending: {FOLDER_TITLE}.
    """
)
@click.argument("source", type=click.Path(path_type=Path), metavar="SRC")
@click.argument("target", type=click.Path(path_type=Path), metavar="DST")
@click.option(
    "--weights",
    default=STORED,
    show_default=True,
    metavar="FORMAT[,CLASS=FORMAT...]",
    callback=_weights,
    help="The weights to write, as `rnn-engine serve --weights` has them; stored keeps what is there.",
)
@lora_option
@click.option(
    "--force",
    is_flag=True,
    help="Replace DST where it is there: a file, or a folder that `convert` wrote and nobody has changed since.",
)
def command(source: Path, target: Path, weights: str, loras: tuple[LoraChoice, ...], force: bool) -> None:
    with open_merged(source, loras) as model, progress_bar("writing") as report:
        title = convert_model(model, target, weights, force=force, progress=report)
        shape = describe_shape(model.shape)
    with open_model(target) as written:
        types = Counter(info.block_type or info.dtype.name for info in written.tensors.values()).most_common()
    click.echo(f"{target}: {title}")
    click.echo(f"{shape}; tensors: {', '.join(f'{count} {name}' for name, count in types)}")
    click.echo(f"{in_words(model_bytes(target))}, from {in_words(model_bytes(source))}")
