"""Pauses in functions that take long, so that other threads get on: only one thread at a time runs Python.

The engine's worker competes in each operation on arrays, of which a step has hundreds. Beside a thread that never waits
a step takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

PAUSE: Final[ContextVar[Callable[[], object]]] = ContextVar("pause", default=lambda: None)
"""The function that `pause` calls, which may wait; it is set by whoever shares threads among clients."""


def pause() -> None:
    """Let other threads get on. To be called every few milliseconds; it may be called for each of many messages."""
    PAUSE.get()()
