"""The options for how much one request may ask for, made from `Limits`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
import cloup

from rnn_engine.cli.sizes import parse_size, size_in_words
from server.limits import BOUNDS, Bound, Limits

_DEFAULT = Limits()


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to `command`, which takes them together as `limits`."""

    @wraps(command)
    def with_limits(**values: Any) -> None:  # noqa: ANN401
        command(limits=Limits(**{name: values.pop(name) for name in BOUNDS}), **values)

    options = [_make_option(name, bound) for name, bound in BOUNDS.items()]
    return cloup.option_group("Limits of a request", *options)(with_limits)


def _make_option(name: str, bound: Bound) -> Callable[[Any], Any]:
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
