"""Run many random operations on a scheduler with a fake runner: clients that come and leave, failing steps and caches.

    python -m tools.states.scheduler_run --operations 100000

Stops at the first client that hears anything else than it would alone, at the first slot, lock or lead that is lost.
"""

from __future__ import annotations

import argparse
import logging
import time

from tests.support.scheduler_model import SchedulerModel, Setting, run_random


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-every", type=int, default=10, help="operations between two checks of everything")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # each failure that is made on purpose would leave a traceback
    model = SchedulerModel(Setting())
    start = time.perf_counter()
    run_random(model, options.seed, options.operations, options.check_every)
    seconds = time.perf_counter() - start
    counts = ", ".join(f"{count} {name}" for name, count in model.operations.most_common())
    print(f"{options.operations} operations, seed {options.seed}, {seconds:.0f} s: every client heard what it should")
    print(f"{counts}; {model.tokens_run} tokens run; all slots free at the end, nothing locked, nobody waited for")
    assert model.cache is not None
    stats = model.cache.stats()
    print(f"cache: {stats.look_ups} look-ups, {stats.hits} hits, {stats.tokens_saved} tokens saved")


if __name__ == "__main__":
    main()
