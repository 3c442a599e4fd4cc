"""`python -m tools.bench.load`: simulate many people who chat with a server, once with its cache and once without.

Clients of a closed load ask again when they have been answered and have thought. Conversations of an open load begin at
random moments, even if the server can't keep up. The server runs in a process of its own, started anew for each load,
so that loads do not find each other's prefixes in the cache. With --modelled its steps take modelled time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from tools.bench.load.client import Traffic, run_closed, run_open
from tools.bench.load.figures import Figures, summarise, table
from tools.bench.load.plot import draw
from tools.bench.turns import comma_separated
from tools.live_server.process import CLI, ServerProcess

_TRAFFIC = Traffic()


@dataclass(frozen=True, slots=True)
class _Server:
    """How to start a server: a module with its first arguments, the options, and the options that disable its cache."""

    command: Sequence[str]
    options: Sequence[str]
    no_cache: Sequence[str]


_numbers = comma_separated(float)


@click.command()
@click.option(
    "--clients",
    callback=_numbers,
    default="1,4,16,64,256",
    show_default=True,
    help="Clients at a time, for each closed load.",
)
@click.option(
    "--rates",
    callback=_numbers,
    default="0.5,1,2,4",
    show_default=True,
    help="Conversations that begin in a second, for each open load.",
)
@click.option("--seconds", default=15.0, show_default=True, help="Seconds of each load in which clients ask.")
@click.option("--model", type=click.Path(path_type=Path), help="As for rnn-engine serve.")
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option(
    "--modelled", is_flag=True, help="Serve no model: a step takes --step seconds, and --token seconds for each token."
)
@click.option("--step", default=0.008, show_default=True, help="Seconds of a modelled step.")
@click.option("--token", default=0.0001, show_default=True, help="Seconds that each token adds to a modelled step.")
@click.option("--slots", default=16, show_default=True)
@click.option(
    "--queue", default=512, show_default=True, help="The most requests that wait for a slot, unless --modelled."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures as an SVG.")
@click.option("--title", default="", help="The title of the plot.")
def main(
    clients: list[float],
    rates: list[float],
    seconds: float,
    model: Path | None,
    device: str,
    modelled: bool,
    step: float,
    token: float,
    slots: int,
    queue: int,
    out: Path | None,
    plot: Path | None,
    title: str,
) -> None:
    """Measure the waiting times of clients."""
    if modelled:
        options = ["--slots", str(slots), "--step", str(step), "--token", str(token)]
        server = _Server(("tools.bench.load.modelled",), options, ("--states", "0"))
    else:
        options = [*([] if model is None else [str(model)]), "--device", device, "--slots", str(slots)]
        options += ["--max-queued", str(queue)]
        server = _Server((CLI, "serve"), options, ("--cache-device-bytes", "0", "--cache-host-bytes", "0"))
    lines: list[Figures] = []
    for load, sizes in (("closed", clients), ("open", rates)):
        for size in sizes:
            for cache in (True, False):
                lines.append(_measure(server, cache=cache, load=load, size=size, seconds=seconds))
                heading, row = table(lines[-1:]).rsplit("\n", 1)
                click.echo(heading + "\n" + row if len(lines) == 1 else row)
    if out is not None:
        out.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n", "utf-8")
    if plot is not None:
        plot.write_text(draw(lines, title), "utf-8")


def _measure(server: _Server, *, cache: bool, load: str, size: float, seconds: float) -> Figures:
    options = [*server.options, *(() if cache else server.no_cache)]
    with ServerProcess(options, command=server.command) as running:
        if load == "closed":
            asked = asyncio.run(run_closed(running.url, _TRAFFIC, int(size), seconds))
        else:
            asked = asyncio.run(run_open(running.url, _TRAFFIC, size, seconds))
        running.stop()
    if not asked.answers:
        raise click.ClickException(f"no answers in {seconds:g} s; make --seconds longer")
    return summarise(asked, cache=cache, load=load, size=size, seconds=seconds)


if __name__ == "__main__":
    main()
