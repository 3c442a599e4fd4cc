"""Make the masks of sequences on other threads while a step runs, so that no step waits long for one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final

from rnn_engine.sampling import Mask, SequenceMask
from rnn_engine.telemetry import EngineCounters

WAIT_SECONDS: Final = 0.005
"""How long a step waits for the masks of its sequences, and once more for each that holds up others."""

_SLOW_SECONDS: Final = 0.005  # that a mask takes whose next one is made apart from the others


class MaskThreads:
    """The threads on which masks are made. For one thread, which calls `add` for the masks of a step, then `start`, and
    `wait` for each while the step runs.

    Masks of a step are made one after another on one thread, since handing one over takes longer than making it. Where
    one takes long, another thread goes on with the rest. Those of sequences whose last one took long are made on a
    thread of their own from then on, whatever number of sequences these are.
    """

    def __init__(
        self, most: int, wake: Callable[[], None], counters: EngineCounters, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        """`most` is how many sequences there are at a time. `wake` is called on another thread when a mask that was
        late is there, and `counters` count the seconds for which steps wait."""
        self._counters = counters
        self._wake = wake
        self._wait_seconds = wait_seconds
        self._quick = ThreadPoolExecutor(most + 1, "masks")
        self._slow = ThreadPoolExecutor(1, "slow masks")
        self._made = threading.Condition()
        self._added: list[SequenceMask] = []
        self._rest: deque[SequenceMask] = deque()  # quick ones of the step that nobody has begun to make
        self._num_left = 0  # of those, when a thread was last given them
        self._deadline: float | None = None  # until which the step waits; None where it has not begun to

    def add(self, mask: SequenceMask) -> None:
        """Have `mask` made from the next `start` on."""
        self._added.append(mask)

    def start(self) -> None:
        """Begin to make the masks that were added."""
        if not self._added:
            return
        added, self._added = self._added, []
        self._rest = deque()
        for mask in added:
            if mask.last_seconds > _SLOW_SECONDS:
                self._slow.submit(self._make_all, deque((mask,)))
            else:
                self._rest.append(mask)
        self._num_left = len(self._rest) + 1
        self._deadline = None
        self._make_rest()

    def wait(self, mask: SequenceMask) -> bool:
        """Return whether `mask` is there, for which the step waits a short time. If not, it is late from then on."""
        if not mask.is_known:
            begun = time.monotonic()
            if self._deadline is None:
                self._deadline = begun + self._wait_seconds
            while not self._is_made(mask, self._deadline) and self._make_rest():
                self._deadline = time.monotonic() + self._wait_seconds
            self._counters.mask_wait_seconds += time.monotonic() - begun
        mask.is_late = not mask.is_known
        if mask.is_late and self._rest:  # the thread that has them may be held up by the first
            self._quick.submit(self._make_all, self._rest)
        return not mask.is_late

    def make(self, mask: SequenceMask) -> bool:
        """Have `mask` made outside a step, and do as `wait`."""
        self.add(mask)
        self.start()
        return self.wait(mask)

    def admit(self, mask: SequenceMask, draft: Sequence[int]) -> tuple[list[int], list[Mask | None]] | None:
        """Return what `mask` admits of `draft`, as `SequenceMask.admit`; None where that takes long."""
        begun = time.monotonic()
        admitted: Future[tuple[list[int], list[Mask | None]]] = self._quick.submit(mask.fork().follow, draft)
        try:
            return admitted.result(self._wait_seconds)
        except FutureTimeoutError:
            return None
        finally:
            self._counters.mask_wait_seconds += time.monotonic() - begun

    def close(self) -> None:
        """Make no more masks. Does not wait for those that are being made."""
        for threads in (self._quick, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)

    def _make_rest(self) -> bool:
        """Have another thread make what is left, where the one before has made some; return whether it does."""
        if not 0 < len(self._rest) < self._num_left:
            return False
        self._num_left = len(self._rest)
        self._quick.submit(self._make_all, self._rest)
        return True

    def _make_all(self, masks: deque[SequenceMask]) -> None:
        while masks:
            try:
                mask = masks.popleft()
            except IndexError:  # another thread has taken the last one
                break
            mask.find_out()
            if mask.is_late:
                self._wake()
        with self._made:
            self._made.notify_all()

    def _is_made(self, mask: SequenceMask, deadline: float) -> bool:
        """Wait until `mask` is there, but not longer than to `deadline`; return whether it is."""
        with self._made:
            return self._made.wait_for(lambda: mask.is_known, max(deadline - time.monotonic(), 0.0))
