"""The eviction queue of a tier: the bytes in use, and which checkpoint gives way first.

A checkpoint is worth the tokens that it saves, times how often it is asked for, for each byte that it and these tokens
take (GreedyDual-Size-Frequency). What is evicted raises the tier's clock to its own worth, and whatever is added or hit
later starts from the clock: so worth fades with time, and a checkpoint that once was popular leaves in the end.

Waypoints give way before all others, and have a clock of their own: what others are worth does not depend on them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from states.cache.checkpoint import Checkpoint
from states.tokens import TOKEN_BYTES


class EvictionQueue:
    """The copies in a tier, ordered by worth. At most `capacity` bytes, as callers add only what `free` allows."""

    def __init__(self, tier: str, capacity: int) -> None:
        self.tier = tier
        self.capacity = capacity
        self.used = 0
        self._clocks = [0.0, 0.0]  # of waypoints, of all others
        self._serial = 0
        self._current: dict[Checkpoint, int] = {}  # checkpoint -> serial of its entry in the queue
        # (whether it is no waypoint, priority, serial, checkpoint), stale ones included
        self._queue: list[tuple[bool, float, int, Checkpoint]] = []

    @property
    def free(self) -> int:
        """Bytes that may still be added."""
        return self.capacity - self.used

    def __len__(self) -> int:
        return len(self._current)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._current)

    def add(self, checkpoint: Checkpoint, size: int) -> None:
        """Enter a copy of `size` bytes."""
        assert size <= self.free, f"{size} bytes don't fit the {self.free} left in tier {self.tier}"
        assert self.tier not in checkpoint.sizes, f"a second copy in tier {self.tier}"
        checkpoint.sizes[self.tier] = size
        self.used += size
        self.touch(checkpoint)

    def remove(self, checkpoint: Checkpoint) -> None:
        """Take a copy out."""
        self.used -= checkpoint.sizes.pop(self.tier)
        del self._current[checkpoint]

    def touch(self, checkpoint: Checkpoint) -> None:
        """Value the copy anew: after a hit, and when it may give way again."""
        size = checkpoint.sizes[self.tier] + TOKEN_BYTES * checkpoint.saves
        worth = (1 + checkpoint.hits) * checkpoint.saves / max(size, 1)
        self._serial += 1
        self._current[checkpoint] = self._serial
        lasts = not checkpoint.is_waypoint
        heapq.heappush(self._queue, (lasts, self._clocks[lasts] + worth, self._serial, checkpoint))
        if len(self._queue) > 2 * len(self._current) + 64:
            self._queue = [entry for entry in self._queue if self._is_current(entry)]
            heapq.heapify(self._queue)

    def weakest(self, *, waypoints_only: bool = False) -> Checkpoint | None:
        """Return the checkpoint that gives way first, or None where all are locked. Advances the clock to its worth.

        With `waypoints_only`, None where all waypoints are locked.
        """
        while self._queue:
            lasts, priority, _, checkpoint = self._queue[0]
            if lasts and waypoints_only:
                return None
            if self._is_current(self._queue[0]) and checkpoint.locks == 0:
                self._clocks[lasts] = max(self._clocks[lasts], priority)
                return checkpoint
            heapq.heappop(self._queue)  # a locked one comes back by the touch at its release
        return None

    def _is_current(self, entry: tuple[bool, float, int, Checkpoint]) -> bool:
        return self._current.get(entry[3]) == entry[2]
