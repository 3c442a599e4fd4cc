"""`rnn-engine devices`, `pull` and `key`: list devices, download models and make API keys."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from rnn_engine.bounds import Kind, setting
from rnn_engine.cli.options import settings_options
from rnn_engine.hub import Wanted
from rnn_engine_server.auth.keys import ApiKey, Scope, check_key_name, new_key, parse_rate, parse_weight


@click.command()
def devices_command() -> None:
    """List the devices that can run a model.

    --device takes an index or a part of a name from this list; cpu always works.
    """
    from rich.console import Console
    from rich.table import Table

    from rnn_engine.gpu import list_devices  # takes a while to import

    devices = list_devices()
    if devices:
        table = Table("index", "name", "kind", "backend", "driver", box=None)
        for device in devices:
            table.add_row(str(device.index), device.name, device.kind, device.backend, device.driver)
        Console().print(table)
    else:
        click.echo("WebGPU finds no GPU: install a Vulkan driver (on Debian or Ubuntu: mesa-vulkan-drivers)", err=True)
    click.echo("cpu: numpy on the processor, works everywhere and is slow")


@click.command()
@click.argument("model", metavar="NAME|REPOSITORY[:FILE]")
def pull_command(model: str) -> None:
    """Fetch a model from the Hugging Face Hub.

    NAME is a short name that `rnn-engine models` lists, such as rwkv7-0.1b. REPOSITORY is OWNER/NAME, and FILE one of
    its files or a pattern such as '*Q8_0.gguf'; the newest match is taken. A download that was interrupted is
    continued, and checked by its checksum. HF_ENDPOINT names a mirror, HF_TOKEN opens repositories that are not public,
    and RNN_ENGINE_MODELS is the folder for models.
    """
    from rnn_engine.hub.download import Hub

    click.echo(Hub(shows_progress=sys.stderr.isatty()).pull(Wanted.parse(model)))


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """What an API key allows."""

    scope: str = setting(Scope.MANAGE.value, Kind(choices=[scope.value for scope in Scope])).help(
        "use: run the model; manage: also keep states of its own; admin: also see and change everything on the server."
    )
    weight: str = setting("1", Kind(metavar="NUMBER")).help(
        "The key's share of the slots and the queue: a key of weight 2 gets twice as much as one of weight 1."
    )
    rate: str | None = setting(None, Kind(metavar="RATE")).help(
        "The most that the key may use in a minute: requests=60,tokens=100000, or one of the two.  [default: "
        "--key-rate of the server]"
    )


@click.command()
@click.argument("name")
@settings_options(KeyOptions)
def key_command(options: KeyOptions, /, name: str) -> None:
    """Make an API key.

    Prints the key, which is kept nowhere, and the key's line for the file of `rnn-engine serve --api-key-file`. The
    line holds only the key's hash. NAME stands for the key in the log, and its states belong to NAME.
    """
    key = new_key()
    rate = None if options.rate is None else parse_rate(options.rate)
    line = ApiKey.of(key, check_key_name(name), Scope(options.scope), parse_weight(options.weight), rate).line
    click.echo(f"key   {key}")
    click.echo(f"line  {line}")
