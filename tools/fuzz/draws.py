"""`python -m tools.fuzz.draws`: check that random requests get equal tokens if the host or the device draws them.

The device draws one token at a time or sixteen. Requests arrive while others run, and some leave early. Text, tokens,
usage and final states must be those of the same request run alone with tokens drawn by the host.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, cast

import click
import numpy as np

from rnn_engine.types import Readout, Runner, Ticket
from tests.support.drawing_cases import answer_all, make_runner

_TOGETHER = 25  # requests of a round


@click.command()
@click.option("--requests", default=1000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(requests: int, seed: int) -> None:
    """Compare the answers of random requests; raise AssertionError at the first difference."""
    began, runner = time.monotonic(), _Watched(make_runner())
    for first in range(0, requests, _TOGETHER):
        numbers = [1_000_000 * seed + number for number in range(first, min(first + _TOGETHER, requests))]
        chance = np.random.default_rng([seed, first])
        arrivals = {number: int(chance.integers(0, 30)) for number in numbers}
        leaves = {number: int(chance.integers(0, 20)) for number in numbers if chance.random() < 0.1}
        runner.max_draws_asked = 0
        expected = {number: runner.answer({number: 0}, {})[number] for number in numbers}
        for runner.max_draws_asked in (1, 16):
            for number, answer in runner.answer(arrivals, leaves).items():
                if answer.finished is None:
                    answer.assert_begins(expected[number])
                else:
                    answer.assert_same(expected[number])
        click.echo(f"{first + len(numbers)} requests agree after {time.monotonic() - began:.0f} s")
    for name, count in runner.counts.items():
        click.echo(f"{name}: {count}")


class _Watched:
    """A wrapper of a runner that counts the tokens that the device draws."""

    def __init__(self, runner: Runner) -> None:
        self.counts: Counter[str] = Counter()
        self.max_draws_asked = 0
        self._runner = runner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._runner, name)

    def answer(self, arrivals: dict[int, int], leaves: dict[int, int]) -> dict[int, Any]:
        return answer_all(cast("Runner", self), arrivals, leaves, max_draws=self.max_draws_asked)

    def collect(self, ticket: Ticket) -> Readout:
        readout = self._runner.collect(ticket)
        name = f"at most {self.max_draws_asked} at a time"
        for drawn in readout.drawn:
            self.counts[f"{name}: tokens that the device drew"] += len(drawn.tokens)
            self.counts[f"{name}: rows that it left to the host"] += not drawn.is_settled
        return readout


if __name__ == "__main__":
    main()
