"""What is counted of a shared store."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class StoreOutcome(Enum):
    """How an operation on the store ended."""

    DONE = "done"
    FAILED = "failed"  # the store was not reached, or did not understand
    TIMED_OUT = "timed_out"
    NO_ROOM = "no_room"  # the store's memory is full
    SKIPPED = "skipped"  # not begun, for the last ones have failed


@dataclass(slots=True)
class StoreCounters:
    """Counts since the start. Written by the store's thread; single numbers may be read on others."""

    outcomes: dict[StoreOutcome, int] = field(default_factory=lambda: dict.fromkeys(StoreOutcome, 0))
    read_bytes: int = 0  # of states
    written_bytes: int = 0
    seconds: float = 0.0  # that operations took, those that failed too
    circuit_open: bool = False  # reading or writing is left alone for a while
    circuit_openings: int = 0
    unreadable: int = 0  # values that could not be understood, and were as if they were not there
