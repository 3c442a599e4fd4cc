"""Writing files on a thread of its own, so that a slow disk holds up no step, or at once on the caller's."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

Job: TypeAlias = Callable[[], None]
"""Writes something; reports a failure by its own means."""

_log = logging.getLogger(__name__)


class Writer(Protocol):
    """Runs jobs in the order in which they are submitted."""

    def submit(self, job: Job, num_bytes: int, *, wait: bool = False) -> bool:
        """Run `job`, which holds `num_bytes`, now or later. False, without `wait`, where too many wait already."""
        ...

    def close(self) -> None:
        """Wait until every job has run. Idempotent; nothing may be submitted afterwards."""
        ...


class InlineWriter:
    """Runs a job when it is submitted."""

    def submit(self, job: Job, num_bytes: int, *, wait: bool = False) -> bool:  # noqa: ARG002
        job()
        return True

    def close(self) -> None:
        """Return at once: no job waits."""


class BackgroundWriter:
    """Runs jobs on one thread. At most `max_bytes` wait, but one job is always taken."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting_bytes = 0
        self._jobs: deque[tuple[Job, int]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job, num_bytes: int, *, wait: bool = False) -> bool:
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._has_room(num_bytes))
            elif not self._has_room(num_bytes):
                return False
            self._jobs.append((job, num_bytes))
            self._waiting_bytes += num_bytes
            self._changed.notify_all()
            return True

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _has_room(self, num_bytes: int) -> bool:
        return self._waiting_bytes == 0 or self._waiting_bytes + num_bytes <= self._max_bytes

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    return
                job, num_bytes = self._jobs.popleft()
            try:
                job()
            except Exception:  # a lost file must not stop those after it
                _log.exception("a state file could not be written")
            with self._changed:
                self._waiting_bytes -= num_bytes
                self._changed.notify_all()
