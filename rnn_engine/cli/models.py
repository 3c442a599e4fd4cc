"""`rnn-engine models`."""

from __future__ import annotations

from pathlib import Path

import click

from rnn_engine.errors import ModelError
from rnn_engine.hub import KNOWN, list_local
from rnn_engine.loading.memory import in_words
from rnn_engine.loading.model import open_model


@click.command()
def command() -> None:
    """List the models on this computer, and the short names of others.

    On this computer are those of `rnn-engine pull` and those in Hugging Face's cache.
    """
    rows = [(each.repository, _version(each.path), in_words(each.num_bytes), str(each.path)) for each in list_local()]
    if rows:
        rows.insert(0, ("repository", "RWKV", "size", "path"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:  # not rich's table, which would cut the paths
            click.echo("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        click.echo("no models here")
    click.echo("\n`rnn-engine pull NAME` fetches the newest file of:")
    for name, wanted in KNOWN.items():
        click.echo(f"{name:18} {wanted}")


def _version(path: Path) -> str:
    """Return the version of a model, - where it is no model that is served."""
    try:
        with open_model(path) as model:
            return model.shape.version
    except ModelError:
        return "-"
