"""The eviction queue of a tier, which counts the tier's bytes and decides which checkpoint is evicted next.

The worth of a checkpoint is the number of tokens that it saves times how often it was used, for each byte that it and
these tokens take (GreedyDual-Size-Frequency). An eviction raises the tier's clock to the worth of the evicted
checkpoint. The worth of a checkpoint that is added or hit later is added to the clock. So worth fades with time, and a
checkpoint that is no longer used is evicted in the end, even if it was popular.

Waypoints are evicted before all others, and have a clock of their own. A new waypoint may evict other checkpoints as
long as waypoints take no more than a share of the tier. So the last prompts have their waypoints even if memory is full
of other checkpoints. Beyond this share waypoints evict only each other.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from rnn_engine_states.cache.checkpoint import Checkpoint
from rnn_engine_states.tokens import TOKEN_BYTES

WAYPOINT_SHARE = 1 / 8  # of a bound in bytes: up to it, others are evicted for waypoints
LEAST_WAYPOINTS = 4  # that a share must have room for, or else it is not used


class EvictionQueue:
    """One tier's checkpoints by worth, and their bytes. Callers add only what `free` allows."""

    def __init__(self, tier: str, capacity: int) -> None:
        self.tier = tier
        self.capacity = capacity
        self._waypoints, self._others = _Ranking(), _Ranking()

    @property
    def used(self) -> int:
        return self._waypoints.num_bytes + self._others.num_bytes

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def __len__(self) -> int:
        return len(self._waypoints) + len(self._others)

    def __iter__(self) -> Iterator[Checkpoint]:
        return itertools.chain(self._waypoints, self._others)

    def add(self, checkpoint: Checkpoint, size: int) -> None:
        """Add to the queue a checkpoint whose copy in the tier has `size` bytes. `size` must be at most `free`."""
        assert size <= self.free, f"{size} bytes don't fit the {self.free} left in tier {self.tier}"
        assert self.tier not in checkpoint.sizes, f"tier {self.tier} already has a copy"
        checkpoint.sizes[self.tier] = size
        self._ranking(checkpoint).put(checkpoint, size)

    def remove(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint from the queue, because its copy in the tier is removed."""
        self._ranking(checkpoint).remove(checkpoint, checkpoint.sizes.pop(self.tier))

    def touch(self, checkpoint: Checkpoint) -> None:
        """Update a checkpoint's place in the queue: after a hit, when unlocked, or when it is no longer a waypoint."""
        size = checkpoint.sizes[self.tier]
        if checkpoint in self._waypoints and not checkpoint.is_waypoint:
            self._waypoints.remove(checkpoint, size)
        self._ranking(checkpoint).put(checkpoint, size)

    @property
    def num_waypoints(self) -> int:
        return len(self._waypoints)

    def weakest(self, *, waypoints: bool | None = None) -> Checkpoint | None:
        """Return the least worthy unlocked checkpoint, of waypoints or of others, and advance the clock to it."""
        waypoint = None if waypoints is False else self._waypoints.weakest()
        return waypoint if waypoint is not None or waypoints else self._others.weakest()

    def weakest_for_waypoint(self, size: int) -> Checkpoint | None:
        """Return the checkpoint to evict so that a new waypoint of `size` bytes fits, or None if all are locked.

        It is a waypoint if waypoints would otherwise take more than their share. It is also a waypoint if the share is
        too small for `LEAST_WAYPOINTS` of this size: fewer are seldom worth the checkpoints evicted for them. Advances
        the clock as `weakest` does.
        """
        share = self.capacity * WAYPOINT_SHARE
        fits = LEAST_WAYPOINTS * size <= share and self._waypoints.num_bytes + size <= share
        return (self._others.weakest() if fits else None) or self._waypoints.weakest()

    def _ranking(self, checkpoint: Checkpoint) -> _Ranking:
        return self._waypoints if checkpoint.is_waypoint else self._others


class _Ranking:
    """Checkpoints by a worth that fades with the queue's own clock; a tier has one of waypoints, one of others."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._clock = 0.0
        self._serial = 0
        self._current: dict[Checkpoint, int] = {}  # checkpoint -> serial of its entry in the queue
        self._queue: list[tuple[float, int, Checkpoint]] = []  # (priority, serial, checkpoint), stale ones included

    def __len__(self) -> int:
        return len(self._current)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._current)

    def __contains__(self, checkpoint: Checkpoint) -> bool:
        return checkpoint in self._current

    def put(self, checkpoint: Checkpoint, size: int) -> None:
        """Add a checkpoint whose copy has `size` bytes to the queue, or update its worth if it was added before."""
        self.num_bytes += 0 if checkpoint in self else size
        worth = (1 + checkpoint.hits) * checkpoint.saves / max(size + TOKEN_BYTES * checkpoint.saves, 1)
        self._serial += 1
        self._current[checkpoint] = self._serial
        heapq.heappush(self._queue, (self._clock + worth, self._serial, checkpoint))
        if len(self._queue) > 2 * len(self._current) + 64:
            self._queue = [entry for entry in self._queue if self._is_current(entry)]
            heapq.heapify(self._queue)

    def remove(self, checkpoint: Checkpoint, size: int) -> None:
        self.num_bytes -= size
        del self._current[checkpoint]

    def weakest(self) -> Checkpoint | None:
        """Return the unlocked checkpoint of least worth, or None, and advance the clock to it."""
        while self._queue:
            priority, _, checkpoint = self._queue[0]
            if self._is_current(self._queue[0]) and checkpoint.locks == 0:
                self._clock = max(self._clock, priority)
                return checkpoint
            heapq.heappop(self._queue)  # a locked one is added again by `touch` when it is released
        return None

    def _is_current(self, entry: tuple[float, int, Checkpoint]) -> bool:
        return self._current.get(entry[2]) == entry[1]
