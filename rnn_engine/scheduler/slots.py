"""The slots of a runner in which sequences run: which are free, and who holds the others."""

from __future__ import annotations

import heapq

from rnn_engine.scheduler.sequence import LiveSequence


class Slots:
    """Free slots and live sequences. A slot that was taken is given back, or held by a sequence until its release."""

    def __init__(self, count: int) -> None:
        self.live: dict[int, LiveSequence] = {}  # by request, oldest first; none that was released
        self._paused: set[int] = set()  # keys of live ones that take part in no step
        self._free = list(range(count))  # a heap

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_advancing(self) -> int:
        """How many sequences are not paused."""
        return len(self.live) - len(self._paused)

    @property
    def lowest_free(self) -> int | None:
        """The free slot that is taken next, without taking it; None where all are taken."""
        return self._free[0] if self._free else None

    def take(self) -> int:
        """Take a free slot; there must be one."""
        return heapq.heappop(self._free)

    def give_back(self, slot: int) -> None:
        """Make a slot free that was taken and in which no sequence runs."""
        heapq.heappush(self._free, slot)

    def hold(self, live: LiveSequence) -> None:
        """Let a sequence hold the slot that was taken for it."""
        self.live[live.key] = live

    def pause(self, key: int, paused: bool) -> None:
        """Leave a sequence out of `runnable`, or let it in again where not `paused`. No error if it is not live."""
        if paused and key in self.live:
            self._paused.add(key)
        else:
            self._paused.discard(key)

    def runnable(self) -> list[LiveSequence]:
        """The sequences that a step that is submitted now can run."""
        live = [one for one in self.live.values() if one.can_run]
        return [one for one in live if one.key not in self._paused] if self._paused else live

    def release(self, live: LiveSequence) -> None:
        """Take a sequence out; its slot is free once none of its runs is in flight."""
        del self.live[live.key]
        self._paused.discard(live.key)
        live.close()
        live.released = True
        if live.runs_in_flight == 0:
            self.give_back(live.slot)

    def end_run(self, live: LiveSequence) -> None:
        """Note that a run of a sequence, released or not, is in flight no more."""
        live.runs_in_flight -= 1
        if live.released and live.runs_in_flight == 0:
            self.give_back(live.slot)
