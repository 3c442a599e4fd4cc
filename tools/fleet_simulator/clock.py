"""The simulation's own time: what happens next, in order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """Runs actions at their moments, in seconds from 0. Actions of one moment run in the order in which they came."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = itertools.count()
        self._coming: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Have `action` run at `moment`, or now where that is over."""
        heapq.heappush(self._coming, (max(moment, self.now), next(self._numbers), action))

    def run(self, until: float) -> None:
        """Run all actions up to the moment `until`, which is then now."""
        while self._coming and self._coming[0][0] <= until:
            self.now, _, action = heapq.heappop(self._coming)
            action()
        self.now = until
