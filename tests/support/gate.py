"""Holds the steps of a fake runner until a test lets them through."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from rnn_engine.types import Batch


@dataclass
class Gate:
    """Holds the worker before every step until it is let through. It is a `FakeRunner`'s `on_step`."""

    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_open: bool = False

    def __call__(self, batch: Batch) -> None:
        if not self.is_open:
            self.permits.acquire()

    def let(self, steps: int) -> None:
        self.permits.release(steps)

    def open(self) -> None:
        self.is_open = True
        self.permits.release()
