"""Run many random operations on a device that fails in every way. The tests' model of a runner is the device.

    python -m tools.fuzz.faults --operations 10000

Clients of two API keys come, leave, stop reading and keep their states under names. Steps are refused, fail, or give
rows that are not numbers. States can't be read, written or copied. The device is lost and can't be reopened at once.
The clock jumps.
The run stops at the first wrong request: one that ends twice, never, without a reason or with a wrong answer.
It also stops at the first slot, lock, lead, name or kept state that is lost, wrong or used by the other API key.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.fault_model import FaultModel, run_random_faults
from tools.reliability.table import Row, command_line, finish, where


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-every", type=int, default=10, help="operations between two full checks")
    parser.add_argument("--record", action="store_true", help="write the result into docs/reliability.md")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # each intended failure would leave a traceback
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("rnn_engine.scheduler.worker.RETRY_SECONDS", (0.0,) * 50)
        start = time.perf_counter()
        model = FaultModel(Path(folder))
        run_random_faults(model, options.seed, options.operations, options.check_every)
        seconds = time.perf_counter() - start
    print(f"{options.operations} operations, seed {options.seed}, {seconds:.0f} s")
    print("operations:", ", ".join(f"{count} {name}" for name, count in model.operations.most_common()))
    print("faults that struck:", ", ".join(f"{count} {fault}" for fault, count in model.faults.struck.most_common()))
    print(f"{model.answers} right answers, 0 wrong ones; {model.errors} requests ended with the error of a fault")
    print(f"the device was opened again {model.recoveries} times; all slots free at the end, nothing locked")
    stats = model.cache.stats()
    print(f"cache: {stats.look_ups} look-ups, {stats.hits} hits; hits by tier:", end=" ")
    print(", ".join(f"{tier.hits} {tier.tier}" for tier in stats.tiers))
    finish(_row(model, options.operations), [], save=options.record)


def _row(model: FaultModel, operations: int) -> Row:
    """Return the run's row for the table in docs/reliability.md. A run that finds a fault never gets here."""
    return Row(
        "random operations of two API keys on a device that fails",
        f"{operations:,} operations, {model.faults.struck.total():,} faults",
        "0 answers, slots, locks, names and kept states",
        f"{model.answers:,} right answers, {model.errors:,} errors of faults, {model.recoveries} devices opened again",
        where("the tests' device"),
        command_line("tools.fuzz.faults"),
    )


if __name__ == "__main__":
    main()
