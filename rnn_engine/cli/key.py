"""`rnn-engine key`."""

from __future__ import annotations

import click

from server.doors.keys import ApiKey, check_key_name, new_key
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
def command(name: str, scope: str) -> None:
    """Make an API key.

    Prints the key, which is kept nowhere, and the line for it in the file of `rnn-engine serve --api-key-file`, which
    holds its hash alone. NAME stands for the key in the log, and its states belong to NAME.
    """
    key = new_key()
    click.echo(f"key   {key}")
    click.echo(f"line  {ApiKey.of(key, check_key_name(name), Scope(scope)).line}")
