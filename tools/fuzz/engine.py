"""`python -m tools.fuzz.engine`: many random operations on an engine whose device fails in every way.

The tests themselves try a few seeds. The command stops with an error at the first fault.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import click
import pytest

from tests.support.fault_model import FaultModel, run_random_faults
from tools.reliability_table import Row, finish


@click.command()
@click.option("--operations", default=10_000, show_default=True)
@click.option("--check-every", default=10, show_default=True, help="Operations between two full checks.")
@click.option("--seed", default=0, show_default=True)
def main(operations: int, check_every: int, seed: int) -> None:
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
        "the tests' device",
    )
    finish(row, [])


if __name__ == "__main__":
    main()
