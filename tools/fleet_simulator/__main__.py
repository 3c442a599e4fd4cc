"""`python -m tools.fleet_simulator`: what a fleet of so many machines serves, with and without routing and a store."""

from __future__ import annotations

import logging
import time

import click

from tools.fleet_simulator.fleet import Counts, Plan, Route
from tools.fleet_simulator.hardware import Hardware
from tools.fleet_simulator.routes import FleetRoute, at_random, knowing_all, simulate, to_the_least_busy
from tools.fleet_simulator.trace import Trace


@click.command()
@click.option("--machines", default="1,4,16", show_default=True)
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--rate", default=1.0, show_default=True, help="Conversations a second and machine.")
@click.option("--turns", default=4, show_default=True, help="Of a conversation.")
@click.option("--answer", default=100, show_default=True, help="Tokens of an answer.")
@click.option("--step", default=0.008, show_default=True, help="Seconds of a step; a token adds 1.25 % of it.")
@click.option("--routes", default="random,least busy,fleet,knowing all", show_default=True)
@click.option("--stored", default=0, show_default=True, help="States that the store has room for; 0 = no store.")
@click.option("--deaths", default=0.0, show_default=True, help="A machine and hour.")
def main(
    machines: str,
    seconds: float,
    rate: float,
    turns: int,
    answer: int,
    step: float,
    routes: str,
    stored: int,
    deaths: float,
) -> None:
    """Simulate fleets. The load is for each machine."""
    logging.getLogger("states").setLevel(logging.ERROR)  # a store that has no room for all is part of the plan
    hardware = Hardware(step=step, token=step / 80)
    trace = Trace(rate=rate, turns=turns, answer_tokens=answer)
    click.echo(
        "machines | route | answers | tokens/s | first ms | 99 % | saved | prefixes run | cut off | moved GB | took s"
    )
    for count in map(int, machines.split(",")):
        all_routes: dict[str, Route] = {
            "random": at_random(1),
            "least busy": to_the_least_busy,
            "fleet": FleetRoute(hardware),
            "knowing all": knowing_all(hardware, trace),
        }
        for name in routes.split(","):
            plan = Plan(count, seconds, hardware, trace, stored_states=stored, deaths=deaths)
            begun = time.perf_counter()
            counts = simulate(plan, all_routes[name])
            click.echo(f"{count} | {name} | {_row(counts, seconds)} | {time.perf_counter() - begun:.1f}")


def _row(counts: Counts, seconds: float) -> str:
    return (
        f"{counts.answers} | {counts.answer_tokens / seconds:.0f} | {1e3 * counts.percentile(50):.0f}"
        f" | {1e3 * counts.percentile(99):.0f} | {counts.cached_tokens / counts.prompt_tokens:.0%}"
        f" | {counts.prefix_runs} | {counts.failures} | {counts.moved_bytes / 1e9:.1f}"
    )


if __name__ == "__main__":
    main()
