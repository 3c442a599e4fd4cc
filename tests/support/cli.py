"""How the tests of the command line call it."""

from __future__ import annotations

from typing import Protocol


class Command(Protocol):
    """Runs `rnn-engine`, checks its exit code, and gives what it printed on both outputs."""

    def __call__(self, *arguments: object, stdin: str | None = None, code: int = 0) -> str: ...
