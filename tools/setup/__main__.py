"""The command line of the set-up: `python -m tools.setup [--dev] [--device required|preferred] [--programs]`.

Messages go to stderr. With `--device`, stdout gets one line: the device that the engine should be asked for.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from pathlib import Path

from tools.setup.device import find_device
from tools.setup.environment import Environment
from tools.setup.programs import BROWSER, COMPILER, STORE, see_to_fleet
from tools.setup.shell import SetupError, Shell

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.setup", description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also install the packages for linting and testing")
    parser.add_argument(
        "--device",
        choices=["required", "preferred"],
        help="also install a driver for the GPU if there is none; if that fails, fail (required) or print cpu",
    )
    parser.add_argument("--programs", action="store_true", help="also install the tests' browser, gcc, store and Ray")
    options = parser.parse_args()
    shell = Shell()
    lock = os.open(ROOT, os.O_RDONLY)  # held until the process ends, so that two makes don't install at once
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        environment = Environment(ROOT, shell)
        environment.ensure("dev" if options.dev else "run")
        if options.programs:
            BROWSER.see_to(shell)
            COMPILER.see_to(shell)
            STORE.see_to(shell)
            see_to_fleet(environment, shell)
        if options.device is not None:
            print(find_device(environment, shell, required=options.device == "required"))
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
