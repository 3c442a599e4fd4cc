"""The type by which tests call the command line."""

from __future__ import annotations

from typing import Protocol


class Command(Protocol):
    """A function that runs `rnn-engine`, checks its exit code, and returns what it printed on both outputs."""

    def __call__(self, *arguments: object, stdin: str | None = None, code: int = 0) -> str: ...
