"""Make the masks of sequences on other threads while a step runs, so that no step waits long for one."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias
from weakref import finalize

from rnn_engine.sampling import Mask, SequenceMask
from rnn_engine.telemetry import EngineCounters

logger = logging.getLogger(__name__)

_Work: TypeAlias = Callable[[], object]

WAIT_SECONDS: Final = 0.005
"""How long a step waits for the masks of its sequences, and once more for each that holds up others."""

_SLOW_SECONDS: Final = 0.005  # that a mask takes whose next one is made apart from the others


class Threads:
    """At most so many threads that do work, each one piece at a time. For one thread, which hands it over.

    An executor with a condition to wait for does the same, but takes more of the processor's time, and every step of
    a text with a grammar pays for it.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._num_threads = 0
        self._num_busy = 0  # pieces of work of which it is not known that they are done
        self._handed: SimpleQueue[_Work | None] = SimpleQueue()
        self._done: SimpleQueue[bool] = SimpleQueue()  # whether it was one of these threads that has done something
        self._end = finalize(self, self._handed.put, None)

    def hand_over(self, work: _Work) -> None:
        """Have `work` done, at once where fewer than all threads are busy."""
        while self.wait(0.0):
            pass
        if self._num_busy >= self._num_threads < self._most:
            arguments = self._handed, self._done
            threading.Thread(target=_do_all, args=arguments, name=self._name, daemon=True).start()
            self._num_threads += 1
        self._num_busy += 1
        self._handed.put(work)

    def wait(self, seconds: float) -> bool:
        """Wait until work is done, but not longer than `seconds`; return whether some is, perhaps since long."""
        try:
            is_own = self._done.get(timeout=max(seconds, 0.0))
        except Empty:
            return False
        self._num_busy -= is_own
        return True

    def note(self) -> None:
        """Have `wait` return, since something else is done. May be called on any thread."""
        self._done.put(False)

    def close(self) -> None:
        """Let the threads end once they have done what they do."""
        self._end()


def _do_all(handed: SimpleQueue[_Work | None], done: SimpleQueue[bool]) -> None:
    """Do the work that is handed over, until None is, which is left for the next thread."""
    while (work := handed.get()) is not None:
        try:
            work()
        except Exception:
            logger.exception("what was to be done for a mask has failed")
        del work  # what it refers to is free while this waits
        done.put(True)
    handed.put(None)


class MaskThreads:
    """The threads on which masks are made. For one thread, which calls `add` for the masks of a step, then `start`, and
    `wait` for each while the step runs.

    Masks of a step are made one after another on one thread, since handing one over takes longer than making it. Where
    one takes long, another thread goes on with the rest. Those of sequences whose last one took long are made on a
    thread of their own from then on, whatever number of sequences these are.

    None is made on the thread of the steps, however quick those before it were: an ambiguous grammar may need 0.2 s for
    the next one within its limits.
    """

    def __init__(
        self, most: int, wake: Callable[[], None], counters: EngineCounters, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        """`most` is how many sequences there are at a time. `wake` is called on another thread when a mask that was
        late is there, and `counters` count the seconds for which steps wait."""
        self._counters = counters
        self._wake = wake
        self._wait_seconds = wait_seconds
        self._quick = Threads(most + 1, "masks")
        self._slow = ThreadPoolExecutor(1, "slow masks")
        self.added: list[SequenceMask] = []  # that the next `start` begins to make
        self._rest: deque[SequenceMask] = deque()  # quick ones of the step that nobody has begun to make
        self._num_left = 0  # of those, when a thread was last given them
        self._deadline: float | None = None  # until which the step waits; None where it has not begun to

    def add(self, mask: SequenceMask) -> None:
        """Have `mask` made from the next `start` on."""
        self.added.append(mask)

    def start(self) -> None:
        """Begin to make the masks that were added, of which there are some."""
        added, self.added = self.added, []
        self._rest = deque()
        for mask in added:
            if mask.last_seconds > _SLOW_SECONDS:
                self._slow.submit(self._make_slow, mask)
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
        mask.is_late = True  # then known or not: a thread that makes it known from here on sees that it is late
        mask.is_late = not mask.is_known
        if mask.is_late and self._rest:  # the thread that has them may be held up by the first
            self._quick.hand_over(partial(self._make_all, self._rest))
        return not mask.is_late

    def make(self, mask: SequenceMask) -> bool:
        """Have `mask` made outside a step, and do as `wait`."""
        self.add(mask)
        self.start()
        return self.wait(mask)

    def admit(self, mask: SequenceMask, draft: Sequence[int]) -> tuple[list[int], list[Mask | None]] | None:
        """Return what a fork of `mask` gives for `draft`, as `SequenceMask.follow`; None where that takes long."""
        begun = time.monotonic()
        ahead = mask.fork()
        admitted: list[tuple[list[int], list[Mask | None]]] = []
        self._quick.hand_over(lambda: admitted.append(ahead.follow(draft)))
        while not admitted and self._quick.wait(begun + self._wait_seconds - time.monotonic()):
            pass
        self._counters.mask_wait_seconds += time.monotonic() - begun
        return admitted[0] if admitted else None

    def close(self) -> None:
        """Make no more masks. Does not wait for those that are being made."""
        self._quick.close()
        self._slow.shutdown(wait=False, cancel_futures=True)

    def _make_rest(self) -> bool:
        """Have another thread make what is left, where the one before has made some; return whether it does."""
        if not 0 < len(self._rest) < self._num_left:
            return False
        self._num_left = len(self._rest)
        self._quick.hand_over(partial(self._make_all, self._rest))
        return True

    def _make_all(self, masks: deque[SequenceMask]) -> None:
        while masks:
            try:
                mask = masks.popleft()
            except IndexError:  # another thread has taken the last one
                break
            self._make(mask)

    def _make_slow(self, mask: SequenceMask) -> None:
        self._make(mask)
        self._quick.note()

    def _make(self, mask: SequenceMask) -> None:
        mask.find_out()
        if mask.is_late:
            self._wake()

    def _is_made(self, mask: SequenceMask, deadline: float) -> bool:
        """Wait until `mask` is there, but not longer than to `deadline`; return whether it is."""
        while not mask.is_known and self._quick.wait(deadline - time.monotonic()):
            pass
        return mask.is_known
