"""`python -m tools.fleet_simulator`: what a fleet of so many machines serves, with and without routing and a store."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from random import Random

import click

from rnn_engine.fleet.routing import Candidate, PrefixRouter
from tools.fleet_simulator.fleet import Counts, Fleet, Plan, Route
from tools.fleet_simulator.hardware import Hardware
from tools.fleet_simulator.machine import Machine
from tools.fleet_simulator.trace import Trace


def at_random(seed: int) -> Route:
    """Send a prompt anywhere."""
    random = Random(seed)
    return lambda _, machines: random.randrange(len(machines))


def to_the_least_busy(_: Sequence[int], machines: Sequence[Machine]) -> int:
    """Send a prompt where the fewest requests are."""
    return min(range(len(machines)), key=lambda number: machines[number].outstanding)


def as_the_fleet(hardware: Hardware) -> Route:
    """Send a prompt where the router of `rnn-engine fleet` sends it."""
    router = PrefixRouter()

    def route(prompt: Sequence[int], machines: Sequence[Machine]) -> int:
        candidates = [Candidate(str(number), hardware.slots, one.outstanding) for number, one in enumerate(machines)]
        return int(router.choose(candidates, "", prompt).name)

    return route


def knowing_all(hardware: Hardware, trace: Trace) -> Route:
    """Send a prompt where its answer begins soonest: tokens that are not cached cost time, and so does a queue.

    Knows at each moment what every cache has, which is the best that any router can know. Where all slots are taken a
    request waits until others have ended.
    """
    held = hardware.step * trace.answer_tokens  # seconds that a request holds its slot

    def route(prompt: Sequence[int], machines: Sequence[Machine]) -> int:
        def seconds(number: int) -> tuple[float, int]:
            machine = machines[number]
            tokens = len(prompt) - machine.cached_tokens(prompt)
            ahead = max(0, machine.outstanding - hardware.slots + 1)
            return hardware.token * tokens + held * ahead / hardware.slots, machine.outstanding

        return min(range(len(machines)), key=seconds)

    return route


@click.command()
@click.option("--machines", default="1,4,16", show_default=True)
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--rate", default=1.0, show_default=True, help="Conversations a second and machine.")
@click.option("--stored", default=0, show_default=True, help="States that the store has room for; 0 = no store.")
@click.option("--deaths", default=0.0, show_default=True, help="A machine and hour.")
def main(machines: str, seconds: float, rate: float, stored: int, deaths: float) -> None:
    """Simulate fleets."""
    logging.getLogger("states").setLevel(logging.ERROR)  # a store that has no room for all is part of the plan
    click.echo("machines | route | answers | tokens/s | first ms | 99 % | saved | prefixes run | moved GB | took s")
    for count in map(int, machines.split(",")):
        hardware, trace = Hardware(), Trace(rate=rate)
        routes = {
            "random": at_random(1),
            "least busy": to_the_least_busy,
            "fleet": as_the_fleet(hardware),
            "knowing all": knowing_all(hardware, trace),
        }
        for name, route in routes.items():
            plan = Plan(count, seconds, hardware, trace, stored_states=stored, deaths=deaths)
            begun = time.perf_counter()
            counts = Fleet(plan, route).run()
            click.echo(f"{count} | {name} | {_row(counts, seconds)} | {time.perf_counter() - begun:.1f}")


def _row(counts: Counts, seconds: float) -> str:
    return (
        f"{counts.answers} | {counts.answer_tokens / seconds:.0f} | {1e3 * counts.percentile(50):.0f}"
        f" | {1e3 * counts.percentile(99):.0f} | {counts.cached_tokens / counts.prompt_tokens:.0%}"
        f" | {counts.prefix_runs} | {counts.moved_bytes / 1e9:.1f}"
    )


if __name__ == "__main__":
    main()
