"""`python -m tools.fuzz.engine samplers` or `faults`: many random cases for tests of the engine.

The tests themselves try a few seeds. A command stops with an error at the first difference or fault.
"""

from __future__ import annotations

import logging
import tempfile
import time
from functools import partial
from multiprocessing import Pool
from pathlib import Path

import click
import pytest

from tests.support.fault_model import FaultModel, run_random_faults
from tests.support.sampler_cases import KINDS, chi_square, compare
from tools.reliability_table import Row, command_line, finish, where

_ROWS = 20  # of one sequence of `samplers`

_seed = click.option("--seed", default=0, show_default=True)


@click.group()
def main() -> None:
    """Test the engine with random cases."""


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
