"""The options for how much one request may ask for, made from `Limits`."""

from __future__ import annotations

import click

from rnn_engine.cli.option_groups import AddOption, option_group
from rnn_engine.cli.sizes import parse_size, size_in_words
from server.limits import BOUNDS, Bound, Limits

_DEFAULT = Limits()


def _make_option(name: str, bound: Bound) -> AddOption:
    option, default = "--" + name.replace("_", "-"), getattr(_DEFAULT, name)
    if bound.unit == "bytes":
        return click.option(
            option,
            callback=parse_size,
            metavar="SIZE",
            default=size_in_words(default),
            show_default=True,
            help=bound.help,
        )
    return click.option(
        option, type=click.IntRange(min=0), metavar="NUMBER", default=default, show_default=True, help=bound.help
    )


limit_options = option_group(
    "Limits of a request", Limits, *(_make_option(name, bound) for name, bound in BOUNDS.items())
)
