"""A gate that holds the steps of a fake runner until a test lets them through."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from rnn_engine.types import Batch


@dataclass
class Gate:
    """The `on_step` of a `FakeRunner`, which holds the worker before every step until the test lets it through."""

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
