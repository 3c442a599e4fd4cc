"""Computes the token masks of sequences on other threads while a step runs, so that no step waits long for one."""

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

from rnn_engine.sampling.masks import Mask, SequenceMask
from rnn_engine.telemetry import EngineCounters

logger = logging.getLogger(__name__)

_Work: TypeAlias = Callable[[], object]

WAIT_SECONDS: Final = 0.005
"""How long a step waits for the masks of its sequences; each mask that holds up others adds as long a wait."""

_SLOW_SECONDS: Final = 0.005  # if a mask takes longer, the next one of its sequence is made on the slow thread


class Threads:
    """A pool of at most `most` threads that run functions, all of which one thread hands over.

    An executor with a condition to wait for does the same, but takes more processor time, and every step of a text with
    a grammar would pay for it.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._num_threads = 0
        self._num_busy = 0  # pieces of work that are not known to be done
        self._handed: SimpleQueue[_Work | None] = SimpleQueue()
        self._done: SimpleQueue[bool] = SimpleQueue()  # True if one of these threads did the work, False from `note`
        self._end = finalize(self, self._handed.put, None)

    def hand_over(self, work: _Work) -> None:
        """Have a thread of the pool run the function `work`, at once if a thread is free or can be started."""
        while self.wait(0.0):
            pass
        if self._num_busy >= self._num_threads < self._most:
            arguments = self._handed, self._done
            threading.Thread(target=_do_all, args=arguments, name=self._name, daemon=True).start()
            self._num_threads += 1
        self._num_busy += 1
        self._handed.put(work)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until a function that was handed over has ended, perhaps before; return True if so."""
        try:
            is_own = self._done.get(timeout=max(seconds, 0.0))
        except Empty:
            return False
        self._num_busy -= is_own
        return True

    def note(self) -> None:
        """Make `wait` return True for something that was done outside the pool. Any thread may call this."""
        self._done.put(False)

    def close(self) -> None:
        """End the threads after they have run all functions that were handed over."""
        self._end()


def _do_all(handed: SimpleQueue[_Work | None], done: SimpleQueue[bool]) -> None:
    """Run the functions from the queue `handed` until None comes, and put None back for the pool's other threads."""
    while (work := handed.get()) is not None:
        try:
            work()
        except Exception:
            logger.exception("a mask could not be made")
        del work  # frees what it refers to while this waits
        done.put(True)
    handed.put(None)


class MaskThreads:
    """Computes the token masks of a scheduler's sequences on threads of its own.

    One thread uses this object: it calls `add` for each mask of a step, then `start`, and `wait` for each mask while
    the step runs.

    The masks of a step are computed one after another on one thread, since handing one over takes longer than computing
    it. If one takes long, another thread continues with the rest. If the last mask of a sequence took long, its next
    one is computed on a separate thread, which all such sequences share.

    No mask is computed on the thread of the steps, even if those before it were quick: within its limits, an ambiguous
    grammar may need 0.2 s for the next mask.
    """

    def __init__(
        self, most: int, wake: Callable[[], None], counters: EngineCounters, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        """Prepare to compute masks for at most `most` sequences. `wake` is called when a late mask has been computed.

        The call is on another thread. `counters` count the seconds for which steps wait. A step waits at most
        `wait_seconds`, and once more for each mask that holds up others.
        """
        self._counters = counters
        self._wake = wake
        self._wait_seconds = wait_seconds
        self._quick = Threads(most + 1, "masks")
        self._slow = ThreadPoolExecutor(1, "slow masks")
        self.added: list[SequenceMask] = []  # masks that the next `start` begins to make
        self._rest: deque[SequenceMask] = deque()  # quick masks of the step that no thread has begun to make
        self._num_left = 0  # length of `_rest` when a thread was last given it
        self._deadline: float | None = None  # until which the step waits; None if it does not wait yet

    def add(self, mask: SequenceMask) -> None:
        """Add `mask` to the token masks that the next `start` begins to compute."""
        self.added.append(mask)

    def start(self) -> None:
        """Begin to compute the token masks that were added; there must be at least one."""
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
        """Wait a short time for `mask`; return True if it was computed, else mark it as late and return False."""
        if not mask.is_known:
            begun = time.monotonic()
            if self._deadline is None:
                self._deadline = begun + self._wait_seconds
            while not self._await(mask, self._deadline) and self._make_rest():
                self._deadline = time.monotonic() + self._wait_seconds
            self._counters.mask_wait_seconds += time.monotonic() - begun
        mask.is_late = True  # before the look: a thread that makes it known from here on sees that it is late
        mask.is_late = not mask.is_known
        if mask.is_late and self._rest:  # the thread that has them may be held up by the first of them
            self._quick.hand_over(partial(self._make_all, self._rest))
        return not mask.is_late

    def make(self, mask: SequenceMask) -> bool:
        """Compute `mask` outside a step; return True if it was done in time, else mark it as late and return False."""
        self.add(mask)
        self.start()
        return self.wait(mask)

    def admit(self, mask: SequenceMask, draft: Sequence[int]) -> tuple[list[int], list[Mask | None]] | None:
        """Return the beginning of the tokens `draft` that the grammar allows, and their masks.

        Return None if that takes too long. `mask` itself is not changed: a fork of it follows the draft. For the masks
        see `SequenceMask.follow`.
        """
        begun = time.monotonic()
        ahead = mask.fork()
        admitted: list[tuple[list[int], list[Mask | None]]] = []
        self._quick.hand_over(lambda: admitted.append(ahead.follow(draft)))
        while not admitted and self._quick.wait(begun + self._wait_seconds - time.monotonic()):
            pass
        self._counters.mask_wait_seconds += time.monotonic() - begun
        return admitted[0] if admitted else None

    def close(self) -> None:
        """Stop computing masks. Does not wait for those that are in progress."""
        self._quick.close()
        self._slow.shutdown(wait=False, cancel_futures=True)

    def _make_rest(self) -> bool:
        """Hand what no thread has begun to another one if the last has begun some; return True if that was done."""
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

    def _await(self, mask: SequenceMask, deadline: float) -> bool:
        while not mask.is_known and self._quick.wait(deadline - time.monotonic()):
            pass
        return mask.is_known
