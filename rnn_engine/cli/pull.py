"""`rnn-engine pull`."""

from __future__ import annotations

import sys

import click
from huggingface_hub.utils import disable_progress_bars

from rnn_engine.hub import Wanted
from rnn_engine.hub.download import Hub


@click.command()
@click.argument("model", metavar="NAME|REPOSITORY[:FILE]")
def command(model: str) -> None:
    """Fetch a model from the Hugging Face Hub.

    NAME is a short name, such as rwkv7-0.1b, that `rnn-engine models` lists; REPOSITORY is OWNER/NAME, and FILE one of
    its files or a pattern such as '*Q8_0.gguf', of which the newest match is taken. A download that was cut is gone on
    from, and checked by its checksum. HF_ENDPOINT names a mirror, HF_TOKEN opens repositories that are not public, and
    RNN_ENGINE_MODELS is the folder for models.
    """
    if not sys.stderr.isatty():
        disable_progress_bars()
    click.echo(Hub().pull(Wanted.parse(model)))
