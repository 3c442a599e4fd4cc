"""`rnn-engine key`."""

from __future__ import annotations

import click

from server.doors.keys import ApiKey, check_key_name, new_key, parse_weight
from server.doors.rates import parse_rate
from server.doors.scopes import Scope


@click.command()
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in Scope]),
    default=Scope.MANAGE.value,
    show_default=True,
    help="use: run the model; manage: keep states of its own, too; admin: see and change what belongs to all.",
)
@click.option(
    "--weight",
    default="1",
    metavar="NUMBER",
    show_default=True,
    help="Where keys share slots and queue: one of weight 2 gets twice as much as one of weight 1.",
)
@click.option(
    "--rate",
    metavar="RATE",
    help="What the key may use in a minute, as requests=60,tokens=100000, or one of both.  "
    "[default: --key-rate of the server]",
)
def command(name: str, scope: str, weight: str, rate: str | None) -> None:
    """Make an API key.

    Prints the key, which is kept nowhere, and the line for it in the file of `rnn-engine serve --api-key-file`, which
    holds its hash alone. NAME stands for the key in the log, and its states belong to NAME.
    """
    key = new_key()
    quota = None if rate is None else parse_rate(rate)
    line = ApiKey.of(key, check_key_name(name), Scope(scope), parse_weight(weight), quota).line
    click.echo(f"key   {key}")
    click.echo(f"line  {line}")
