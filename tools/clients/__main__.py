"""Runs client packages against a server: structured output and tools, each as its own documentation shows it.

    uv venv clients && uv pip install --python clients/bin/python -r tools/clients/requirements.txt
    rnn-engine serve & clients/bin/python -m tools.clients --url http://127.0.0.1:65530

The questions are such that the demo model can answer them. What decides is that the package accepts the answer: that it
parses into the model asked for, that the tool is called and its result sent back. Exits with 1 where one failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib.metadata import version

from tools.clients import instructor_checks, langchain_checks, openai_checks, pydantic_ai_checks
from tools.clients.questions import Check, Checks

CHECKS: Mapping[str, Checks] = {
    "openai": openai_checks.CHECKS,
    "instructor": instructor_checks.CHECKS,
    "langchain-openai": langchain_checks.CHECKS,
    "pydantic-ai-slim": pydantic_ai_checks.CHECKS,
}
_SHOWN = 110  # characters of an outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:65530", help="the server's root")
    url = f"{parser.parse_args().url.rstrip('/')}/v1"
    print("| package | what | works | outcome |\n|---|---|---|---|", flush=True)
    failed = False
    for package, checks in CHECKS.items():
        for name, check in checks.items():
            works, outcome = _run(check, url)
            failed |= not works
            shown = " ".join(outcome.split())[:_SHOWN].replace("|", "\\|")
            print(f"| {package} {version(package)} | {name} | {'yes' if works else 'no'} | `{shown}` |", flush=True)
    sys.exit(failed)


def _run(check: Check, url: str) -> tuple[bool, str]:
    try:
        return True, repr(check(url))
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
