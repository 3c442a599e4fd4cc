"""Which checkpoints are to be written to a slow tier although they need not give way: those of a certain age.

So a crash loses what was kept in the last seconds, and not all that memory had room for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from states.cache.checkpoint import Checkpoint
from states.cache.tiers.tier import PendingPayload
from states.payload import Payload

MOST_READS = 4  # at a time: each holds a copy in host memory, and those of the device take its time

_log = logging.getLogger(__name__)


class WriteBehind:
    """The checkpoints that no slow tier has, by age, and those that are being read to be written.

    For the thread that owns the device; only `is_idle` may be asked on others.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """A checkpoint is old enough after so many `seconds` by the `clock`."""
        self._seconds = seconds
        self._clock = clock
        self._since: dict[Checkpoint, float] = {}  # when it was noted; the earliest first
        self._reads: dict[Checkpoint, PendingPayload] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._since and not self._reads

    def note(self, checkpoint: Checkpoint) -> None:
        """Have a checkpoint written when it is old enough, unless a slow tier has it then."""
        self._since.setdefault(checkpoint, self._clock())

    def run(
        self,
        start_read: Callable[[Checkpoint], PendingPayload | None],
        write: Callable[[Checkpoint, Payload], None],
    ) -> None:
        """Write what has been read, and begin to read what is old enough. Does not wait.

        `start_read` gives a copy of a checkpoint, None where it need not be written any more; `write` takes what was
        read. Both may call `note`.
        """
        for checkpoint, pending in list(self._reads.items()):
            if pending.done():
                del self._reads[checkpoint]
                _finish(checkpoint, pending, write)
        for checkpoint, since in list(self._since.items()):
            if self._clock() - since < self._seconds or len(self._reads) >= MOST_READS:
                return
            del self._since[checkpoint]
            started = start_read(checkpoint)
            if started is not None:
                self._reads[checkpoint] = started


def _finish(checkpoint: Checkpoint, pending: PendingPayload, write: Callable[[Checkpoint, Payload], None]) -> None:
    try:
        payload = pending.result()
    except Exception as error:
        _log.warning("a checkpoint is not written to disk: its copy can't be read: %s", error)
        return
    write(checkpoint, payload)
