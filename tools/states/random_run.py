"""Run many random operations on the state cache, all tiers included, against the tests' model of it.

    python -m tools.states.random_run --operations 100000

Stops at the first disagreement. The folder should be in memory (the default is /dev/shm where there is one): each
file that is written waits for its disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.support.cache_model import CacheModel, run_random


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-every", type=int, default=100, help="operations between two checks of everything")
    parser.add_argument("--folder", type=Path, default=_memory_folder(), help="where the disk tier's folder is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        model = CacheModel(Path(folder))
        start = time.perf_counter()
        run_random(model, options.seed, options.operations, options.check_every)
        model.end()
        seconds = time.perf_counter() - start
    counts = ", ".join(f"{count} {name}" for name, count in model.operations.most_common())
    print(f"{options.operations} operations, seed {options.seed}, {seconds:.0f} s: the tree and the books agree")
    print(f"{counts}; nothing left at the end")


def _memory_folder() -> Path | None:
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else None


if __name__ == "__main__":
    main()
