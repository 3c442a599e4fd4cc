"""The routes that are compared: at random, by load, as the fleet's router does, and knowing every cache."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rnn_engine.fleet.routing import Candidate, PrefixRouter
from tools.fleet_simulator.fleet import Route
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
