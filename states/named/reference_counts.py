"""How many bytes a set of states takes: names that share their arrays count once.

Knows sizes; knows neither names nor owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from states.frozen import FrozenState


class ReferenceCounts:
    """The states that are held, each as often as it has names."""

    def __init__(self) -> None:
        self._names: Counter[FrozenState] = Counter()
        self._digests: Counter[str] = Counter()
        self.num_bytes = 0

    def add(self, held: FrozenState) -> None:
        """One more name for it."""
        if held not in self._names:
            self.num_bytes += held.num_bytes
        self._names[held] += 1
        self._digests[held.digest] += 1

    def remove(self, held: FrozenState) -> bool:
        """One name fewer. Whether no state of these values is left, under any name."""
        self._names[held] -= 1
        self._digests[held.digest] -= 1
        if self._names[held] == 0:
            del self._names[held]
            self.num_bytes -= held.num_bytes
        if self._digests[held.digest] > 0:
            return False
        del self._digests[held.digest]
        return True

    def growth(self, added: Iterable[FrozenState], removed: Iterable[FrozenState]) -> int:
        """By how many bytes the sum would change; negative where more goes than comes."""
        change = Counter(added)
        change.subtract(removed)
        before = self._names
        return sum(
            held.num_bytes * (int(before[held] + count > 0) - int(before[held] > 0)) for held, count in change.items()
        )
