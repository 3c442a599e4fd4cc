"""Run many random operations on a device that fails in every way, which the tests' model of a runner stands for.

    python -m tools.fuzz.faults --operations 10000

Clients of two API keys come, leave, stop to read and keep their states under names; steps are refused, fail, or give
rows that are not numbers; states can't be read, written or copied; the device is lost and can't be opened at once; the
clock jumps. Stops at the first request that ends twice, never, without a reason or with another answer than a sound
device gives, and at the first slot, lock, lead, name or kept state that is lost, wrong or used by a request of the
other API key.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.fault_model import FaultModel, run_random_faults
from tools.reliability.table import Row, command_line, record, where


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-every", type=int, default=10, help="operations between two checks of everything")
    parser.add_argument("--record", action="store_true", help="write the result into docs/reliability.md")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # each failure that is made on purpose would leave a traceback
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
    if options.record:
        record(_row(model, options.operations))


def _row(model: FaultModel, operations: int) -> Row:
    """Return the result for docs/reliability.md; a run that finds a fault does not come so far."""
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
