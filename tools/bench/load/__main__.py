"""`python -m tools.bench.load`: chat with a server as many people do, with its cache and without.

Clients of a closed load ask again when they have been answered and have thought; conversations of an open load begin
at random moments, whether the server keeps up or not. The server runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tools.bench.load.client import Clients, run_closed, run_open
from tools.bench.load.figures import Figures, summarise, table
from tools.bench.load.traffic import Traffic
from tools.live_server.process import ServerProcess

_NO_CACHE = ("--cache-device-bytes", "0", "--cache-host-bytes", "0")


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


@click.command()
@click.option("--clients", callback=_numbers, default="1,4,16,64,256", show_default=True, help="Of closed loads.")
@click.option("--rates", callback=_numbers, default="0.5,1,2,4", show_default=True, help="Conversations a second.")
@click.option("--seconds", default=15.0, show_default=True, help="Of each load.")
@click.option("--model", type=click.Path(path_type=Path), help="As for rnn-engine serve.")
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--slots", default=16, show_default=True)
@click.option("--queue", default=512, show_default=True, help="Requests that may wait.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures as JSON.")
@click.option("--plots", type=click.Path(path_type=Path), help="A folder for plots; needs matplotlib.")
def main(
    clients: list[float],
    rates: list[float],
    seconds: float,
    model: Path | None,
    device: str,
    slots: int,
    queue: int,
    out: Path | None,
    plots: Path | None,
) -> None:
    """Measure what clients wait for."""
    traffic = Traffic()
    options = ["--device", device, "--slots", str(slots), "--max-queued", str(queue)]
    command = [*([] if model is None else [str(model)]), *options]
    lines: list[Figures] = []
    for cache in (True, False):
        for load, sizes in (("closed", clients), ("open", rates)):
            for size in sizes:
                lines.append(_measure(command, traffic, cache=cache, load=load, size=size, seconds=seconds))
                click.echo(table(lines[-1:]).splitlines()[-1])
    click.echo(table(lines))
    if out is not None:
        out.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n", "utf-8")
    if plots is not None:
        from tools.bench.load.plot import draw

        for load in ("closed", "open"):
            draw(lines, load, f"{load} load, {slots} slots, {model or 'demo model'}", plots / f"{load}.svg")


def _measure(
    command: Sequence[str], traffic: Traffic, *, cache: bool, load: str, size: float, seconds: float
) -> Figures:
    """Start a server for one load, so that loads do not find each other's prefixes in the cache."""
    with TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder) / "log", [*command, *(() if cache else _NO_CACHE)])
        with server:
            clients = asyncio.run(_run(server.url, traffic, load, size, seconds))
            server.stop()
    if len(clients.answers) < 2:
        raise click.ClickException(
            f"{len(clients.answers)} answers in {seconds:g} s are too few; make --seconds longer"
        )
    return summarise(clients.answers, cache=cache, load=load, size=size, refused=clients.refused)


async def _run(url: str, traffic: Traffic, load: str, size: float, seconds: float) -> Clients:
    if load == "closed":
        return await run_closed(url, traffic, int(size), seconds)
    return await run_open(url, traffic, size, seconds)


if __name__ == "__main__":
    main()
