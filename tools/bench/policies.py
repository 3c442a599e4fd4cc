"""`python -m tools.bench.policies`: compare batching policies under a load that arrives at random.

A simulation: the real scheduler and policies on a clock of its own, over a runner whose steps take
`base + tokens * each` seconds. It says what waiting gains or costs under that model of a step, not how fast a device
is. Every policy serves the same requests.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import fmean

import click
import numpy as np

from rnn_engine.errors import RnnEngineError
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, Started
from rnn_engine.scheduler import Scheduler, parse_policy
from rnn_engine.types import Batch
from tests.support.fake_runner import FakeRunner
from tests.support.models import tiny_shape

POLICIES = ("eager", "k:4", "t:0.005", "k-or-t:4,0.002", "adaptive")
_PROMPT, _NEW = 32, 16  # tokens of a request
_SLOTS = 8
_VOCAB = 257


@dataclass
class Device:
    """A clock that a runner's steps move on."""

    base: float  # seconds a step
    each: float  # seconds a token of a step
    now: float = 0.0
    steps: int = 0

    def run(self, batch: Batch) -> None:
        self.steps += 1
        self.now += self.base + self.each * sum(len(run.tokens) for run in batch)


@dataclass
class Outcome:
    """When requests arrived, got their first token and ended, in seconds."""

    arrived: dict[int, float] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)  # the first token
    ended: dict[int, float] = field(default_factory=dict)

    def row(self, policy: str, device: Device) -> str:
        waits = sorted(self.first[key] - begun for key, begun in self.arrived.items())
        whole = fmean(self.ended[key] - begun for key, begun in self.arrived.items())
        late = waits[int(0.95 * len(waits))]
        rate = len(self.arrived) * _NEW / device.now
        figures = f"{1e3 * fmean(waits):.1f} | {1e3 * late:.1f} | {1e3 * whole:.1f} | {rate:.1f} | {device.steps}"
        return f"| {policy} | {figures} |"


def simulate(policy: str, arrivals: list[float], device: Device) -> Outcome:
    """Serve requests that come at `arrivals`, seconds, ascending."""
    row = np.zeros(_VOCAB, np.float32)
    runner = FakeRunner(
        lambda _: row,
        shape=tiny_shape(vocab=_VOCAB),
        num_slots=_SLOTS,
        max_tokens=128,
        max_rows=_SLOTS,
        on_step=device.run,
    )
    scheduler = Scheduler(runner, lambda _: b"x", policy=parse_policy(policy), clock=lambda: device.now)
    outcome = Outcome()
    while len(outcome.ended) < len(arrivals):
        while len(outcome.arrived) < len(arrivals) and arrivals[len(outcome.arrived)] <= device.now:
            key = len(outcome.arrived)
            outcome.arrived[key] = arrivals[key]
            scheduler.submit(key, _request(key))
        wait_seconds = scheduler.wait_seconds()
        coming = arrivals[len(outcome.arrived)] if len(outcome.arrived) < len(arrivals) else float("inf")
        if wait_seconds is None or (wait_seconds > 0 and device.now + wait_seconds > device.now):
            device.now = min(coming, device.now + (float("inf") if wait_seconds is None else wait_seconds))
            continue
        for delivery in scheduler.step():
            if isinstance(delivery.outcome, RnnEngineError):
                raise delivery.outcome
            if isinstance(delivery.outcome, Started):
                outcome.first[delivery.key] = device.now
            if isinstance(delivery.outcome, Finished):
                outcome.ended[delivery.key] = device.now
    return outcome


def _request(key: int) -> GenerateRequest:
    return GenerateRequest(
        [1 + key % 256] * _PROMPT, max_tokens=_NEW, stop_tokens=(), sampling=SamplingParams(temperature=0.0)
    )


@click.command()
@click.option("--base", default=10.0, show_default=True, help="Milliseconds that a step takes whatever it runs.")
@click.option("--each", default=0.2, show_default=True, help="Milliseconds that each of its tokens adds.")
@click.option("--loads", default="0.3,0.6,0.9", show_default=True, help="Arrivals, in parts of what can be served.")
@click.option("--requests", default=400, show_default=True)
def main(base: float, each: float, loads: str, requests: int) -> None:
    """Compare batching policies on a modelled device."""
    slot_seconds = (_NEW * (base + each * _SLOTS) + each * _PROMPT * _SLOTS) / 1e3 / _SLOTS
    print(f"steps of {base:g} ms + {each:g} ms a token, {_SLOTS} slots, prompts of {_PROMPT}, answers of {_NEW} tokens")
    print(
        "| load | policy | first token ms | 95 % of them | whole ms | tokens/s | steps |\n|---|---|---|---|---|---|---|"
    )
    for load in map(float, loads.split(",")):
        generator = random.Random(1)
        now, arrivals = 0.0, []
        for _ in range(requests):
            now += generator.expovariate(load / slot_seconds)
            arrivals.append(now)
        for policy in POLICIES:
            device = Device(base / 1e3, each / 1e3)
            print(f"| {load:g} {simulate(policy, arrivals, device).row(policy, device)}")


if __name__ == "__main__":
    main()
