"""The routes that are compared: at random, by load, as the fleet's router does, and knowing every cache."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rnn_engine.fleet.routing import Candidate, PrefixRouter
from tools.fleet_simulator.fleet import Counts, Fleet, Plan, Route
from tools.fleet_simulator.hardware import Hardware
from tools.fleet_simulator.machine import ROOT, Machine
from tools.fleet_simulator.trace import Trace


def at_random(seed: int) -> Route:
    """Send a prompt anywhere."""
    random = Random(seed)
    return lambda _, machines: random.randrange(len(machines))


def to_the_least_busy(_: Sequence[int], machines: Sequence[Machine]) -> int:
    """Send a prompt where the fewest requests are."""
    return min(range(len(machines)), key=lambda number: machines[number].outstanding)


class FleetRoute:
    """Sends a prompt where the router of `rnn-engine fleet` sends it."""

    def __init__(self, hardware: Hardware) -> None:
        self._slots = hardware.slots
        self._router = PrefixRouter()

    def __call__(self, prompt: Sequence[int], machines: Sequence[Machine]) -> int:
        candidates = [Candidate(machine.name, self._slots, machine.outstanding) for machine in machines]
        chosen = self._router.choose(candidates, ROOT, prompt)
        return next(number for number, machine in enumerate(machines) if machine.name == chosen.name)

    def survey(self, machines: Sequence[Machine]) -> None:
        """Take in what has changed in the machines' caches, and forget the machines that have died."""
        versions = self._router.versions()
        for gone in versions.keys() - {machine.name for machine in machines}:
            self._router.forget(gone)
        for machine in machines:
            self._router.note(machine.name, machine.cache_changes(versions.get(machine.name)))


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


def simulate(plan: Plan, route: Route) -> Counts:
    """Serve a plan's trace with a route."""
    return Fleet(plan, route, route.survey if isinstance(route, FleetRoute) else _look_at_nothing).run()


def _look_at_nothing(_: Sequence[Machine]) -> None:
    """Do nothing: the route knows what it is to know."""
