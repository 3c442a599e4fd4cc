"""Runs the checks of one Python package in the environment that has it, and prints each outcome as a line of JSON.

    python -m tools.clients.run_checks MODULE URL

What the package prints goes to the standard error stream.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from tools.clients.questions import Check, Checks, Row


def main() -> None:
    module, url = sys.argv[1:]
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    checks: Checks = import_module(f"tools.clients.{module}_checks").CHECKS
    for what, check in checks.items():
        print(json.dumps(_run(what, check, url)._asdict()), file=lines, flush=True)


def _run(what: str, check: Check, url: str) -> Row:
    try:
        return Row(what, True, repr(check(url)))
    except Exception as error:
        return Row(what, False, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
