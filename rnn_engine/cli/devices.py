"""`rnn-engine devices`."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from rnn_engine.gpu import list_devices


@click.command()
def command() -> None:
    """List the devices that can run a model.

    --device takes an index or a part of a name from this list; cpu always works.
    """
    devices = list_devices()
    if devices:
        table = Table("index", "name", "kind", "backend", "driver", box=None)
        for device in devices:
            table.add_row(str(device.index), device.name, device.kind, device.backend, device.driver)
        Console().print(table)
    else:
        click.echo(
            "no GPU that WebGPU reaches: install a Vulkan driver (on Debian or Ubuntu: mesa-vulkan-drivers)", err=True
        )
    click.echo("cpu: numpy on the processor, works everywhere and is slow")
