"""The options that say who may come in."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import click

from rnn_engine.cli.options import with_options
from rnn_engine.errors import InvalidRequestError
from server.doors.origins import check_origin
from server.doors.settings import DoorSettings


def _parse_origins(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """A click callback."""
    try:
        return tuple(map(check_origin, texts))
    except InvalidRequestError as error:
        raise click.BadParameter(str(error)) from error


_OPTIONS = (
    click.option(
        "--open",
        "open_to_all",
        is_flag=True,
        help="Without an API key, admit other machines, too: everyone who reaches the address.",
    ),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="A name by which clients may call the server, besides localhost, the name in --host and addresses; "
        "checked without an API key or where it is given. May be given several times.",
    ),
    click.option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        callback=_parse_origins,
        metavar="ORIGIN",
        help="Let web pages of this origin call the server, as https://chat.example. May be given several times.",
    ),
)


def door_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to `command`, which takes them together as `doors`."""

    @wraps(command)
    def with_doors(
        *, open_to_all: bool, allowed_hosts: tuple[str, ...], cors_origins: tuple[str, ...], **others: object
    ) -> None:
        command(doors=DoorSettings(open_to_all, allowed_hosts, cors_origins), **others)

    return with_options(with_doors, _OPTIONS)
