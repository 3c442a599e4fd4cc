"""`python -m tools.fuzz.engine draws`, `kernels`, `samplers` or `faults`: many random cases for tests of the engine.

The tests themselves try a few seeds. A command stops with an error at the first difference or fault.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter
from contextlib import closing
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import pytest

from rnn_engine.demo import model_path
from rnn_engine.forward.variants import KernelLimits, MatMulVariant
from rnn_engine.loading.kernel_choices import kernel_limits
from rnn_engine.loading.runner import open_model
from rnn_engine.types import Readout, Runner, Ticket
from tests.support.drawing_cases import answer_all, make_runner
from tests.support.fault_model import FaultModel, run_random_faults
from tests.support.gpu import open_checked
from tests.support.sampler_cases import KINDS, chi_square, compare
from tests.support.tuned import load_with_matmuls
from tests.support.tuned_tokens import Choices, Draws, Works, count_same, load_chosen, possible, works_of
from tools.reliability_table import Row, command_line, finish, where

_TOGETHER = 25  # requests of a round of `draws`
_COUNTS = (1, 8, 16, 32, 64)  # of tokens, for which `kernels` chooses variants
_ROUNDING = 2e-4  # of the greatest logit of a row, in `kernels`
_ROWS = 20  # of one sequence of `samplers`

_seed = click.option("--seed", default=0, show_default=True)


@click.group()
def main() -> None:
    """Test the engine with random cases."""


@main.command()
@click.option("--requests", default=1000, show_default=True)
@_seed
def draws(requests: int, seed: int) -> None:
    """Check that random requests get equal tokens whether the host or the device draws them.

    The device draws one token at a time or sixteen. Requests arrive while others run, and some leave early. Text,
    tokens, usage and final states must be those of the same request run alone with tokens drawn by the host.
    """
    began, runner = time.monotonic(), _Counting(make_runner())
    for first in range(0, requests, _TOGETHER):
        numbers = [1_000_000 * seed + number for number in range(first, min(first + _TOGETHER, requests))]
        chance = np.random.default_rng([seed, first])
        arrivals = {number: int(chance.integers(0, 30)) for number in numbers}
        leaves = {number: int(chance.integers(0, 20)) for number in numbers if chance.random() < 0.1}
        expected = {number: runner.answer({number: 0}, {}, max_draws=0)[number] for number in numbers}
        for max_draws in (1, 16):
            for number, answer in runner.answer(arrivals, leaves, max_draws).items():
                if answer.finished is None:
                    answer.assert_begins(expected[number])
                else:
                    answer.assert_same(expected[number])
        click.echo(f"{first + len(numbers)} requests agree after {time.monotonic() - began:.0f} s")
    for name, count in runner.counts.items():
        click.echo(f"{name}: {count}")


class _Counting:
    """A wrapper of a runner that counts the tokens that the device draws."""

    def __init__(self, runner: Runner) -> None:
        self.counts: Counter[str] = Counter()
        self._runner = runner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._runner, name)

    def answer(self, arrivals: dict[int, int], leaves: dict[int, int], max_draws: int) -> dict[int, Any]:
        return answer_all(cast("Runner", self), arrivals, leaves, max_draws=max_draws)

    def collect(self, ticket: Ticket) -> Readout:
        readout = self._runner.collect(ticket)
        for drawn in readout.drawn:
            self.counts["tokens that the device drew"] += len(drawn.tokens)
            self.counts["rows that it left to the host"] += not drawn.is_settled
        return readout


@main.command()
@click.option("--requests", default=1000, show_default=True)
@click.option("--choices", default=10, show_default=True, help="How many times new kernels are chosen.")
@click.option("--tokens", default=16, show_default=True, help="Tokens that a request generates.")
@_seed
def kernels(requests: int, choices: int, tokens: int, seed: int) -> None:
    """Check that the demo model generates the same tokens with random kernel variants.

    Logits may differ by rounding alone. So a token is the same, with two exceptions: two greedy candidates are that
    near to each other, or a random number is that near to the border between two tokens. After some random prompts,
    a change of the demo model's embeddings by 1e-7 changes a logit by 4e-5 of the greatest, so more is allowed here
    than in the tests.
    """
    began, chance = time.monotonic(), np.random.default_rng(seed)
    limits = kernel_limits(open_checked("software")[0])
    with closing(open_model(model_path())) as model:
        usual, matmuls = load_with_matmuls(model)
        works = works_of(matmuls, _COUNTS)
        ended = 0
        for number in range(choices):
            with closing(load_chosen(model, _choose(works, limits, chance))) as other:
                for request in range(requests // choices):
                    prompt = chance.integers(model.shape.vocab_size, size=int(chance.integers(1, 65))).tolist()
                    temperature = float(chance.choice([0.0, 0.5, 1.0]))
                    drawn = Draws(prompt, seed + number * requests + request, temperature, tokens)
                    ended += count_same(usual, other, drawn, _ROUNDING) < tokens
            click.echo(f"{(number + 1) * (requests // choices)} requests after {time.monotonic() - began:.0f} s")
        usual.close()
    click.echo(f"all logits within rounding; {ended} requests came to a token that rounding decides")


def _choose(works: Works, limits: KernelLimits, chance: np.random.Generator) -> Choices:
    """Choose a random kernel variant for each matmul in `works`.

    For each count of tokens there are two variants, and each matmul gets one of the two. There are no more than two
    since each takes seconds to compile.
    """
    pairs: dict[int, list[MatMulVariant]] = {}
    for (_, count), work in works.items():
        every = possible(work, limits)
        pairs.setdefault(count, [every[index] for index in chance.integers(len(every), size=2)])
    return {key: pairs[key[1]][chance.integers(2)] for key in works}


@main.command()
@click.option("--rows", default=100_000, show_default=True, help="How many rows to compare, of all kinds together.")
@click.option("--draws", default=20_000, show_default=True, help="Tokens that each chi-square test counts.")
@click.option("--processes", default=1, show_default=True)
@_seed
def samplers(rows: int, draws: int, processes: int, seed: int) -> None:
    """Compare every sampler with an independent implementation of its formula.

    A row agrees if each token's part of [0, 1) begins and ends within 1e-6 of the formula's bounds. Tokens are also
    drawn from one row of each kind, and their counts compared with the formula's by a chi-square test.
    """
    began, total = time.monotonic(), 0
    seeds = range(seed, seed + -(-rows // (len(KINDS) * _ROWS)))
    with Pool(processes) as workers:
        for kind in KINDS:
            checked = sum(workers.map(partial(_compare, kind), seeds, chunksize=16))
            total += checked
            value, freedom = chi_square(kind, seed, draws)
            click.echo(f"{kind:18} {checked:6} rows agree; {draws} draws: chi-square {value:.1f} at {freedom}")
    click.echo(f"{total} rows in {time.monotonic() - began:.0f} s: every one agrees within 1e-6")


def _compare(kind: str, seed: int) -> int:
    return compare(kind, seed, _ROWS).checked


@main.command()
@click.option("--operations", default=10_000, show_default=True)
@click.option("--check-every", default=10, show_default=True, help="Operations between two full checks.")
@_seed
def faults(operations: int, check_every: int, seed: int) -> None:
    """Run random operations of clients of two API keys on a device that fails in every way: the tests' model of one.

    The run stops at the first request that ends twice, never, without a reason or with a wrong answer. It also stops at
    the first slot, lock, lead, name or kept state that is lost, wrong or used by the other API key.
    """
    logging.disable(logging.CRITICAL)  # each intended failure would leave a traceback
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("rnn_engine.scheduler.worker.RETRY_SECONDS", (0.0,) * 50)
        model = FaultModel(Path(folder))
        run_random_faults(model, seed, operations, check_every)
    click.echo("operations: " + ", ".join(f"{count} {name}" for name, count in model.operations.most_common()))
    click.echo("faults: " + ", ".join(f"{count} {fault}" for fault, count in model.faults.struck.most_common()))
    row = Row(
        "random operations of two API keys on a device that fails",
        f"{operations:,} operations, {model.faults.struck.total():,} faults",
        "0 answers, slots, locks, names and kept states",
        f"{model.answers:,} right answers, {model.errors:,} errors of faults, {model.recoveries} devices opened again",
        where("the tests' device"),
        command_line("tools.fuzz.engine"),
    )
    finish(row, [])


if __name__ == "__main__":
    main()
