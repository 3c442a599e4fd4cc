"""Runs the checks of one Python package in the environment that has it, and prints each outcome as a line of JSON.

    python -m tools.clients.run_checks NAME URL

What the package prints goes to the standard error stream.
"""

from __future__ import annotations

import json
import os
import sys

from tools.clients import agents, chats, evaluations, vectors
from tools.clients.checks import Check, Row


def main() -> None:
    name, url = sys.argv[1:]
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    [client] = [getattr(module, name) for module in (agents, chats, evaluations, vectors) if hasattr(module, name)]
    for what, check in client().items():
        print(json.dumps(_run(what, check, url)._asdict()), file=lines, flush=True)


def _run(what: str, check: Check, url: str) -> Row:
    try:
        return Row(what, True, repr(check(url)))
    except Exception as error:
        return Row(what, False, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
