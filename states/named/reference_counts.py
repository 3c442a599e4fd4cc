"""Reference counts of states that names share, and the bytes that they take together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from states.frozen import FrozenState


class ReferenceCounts:
    """How many names stand for each state; the arrays of a state count once."""

    def __init__(self) -> None:
        self._names: Counter[FrozenState] = Counter()
        self._digests: Counter[str] = Counter()
        self.num_bytes = 0
        self.num_names = 0

    def add(self, state: FrozenState) -> None:
        """Increment the reference count of `state`."""
        if state not in self._names:
            self.num_bytes += state.num_bytes
        self.num_names += 1
        self._names[state] += 1
        self._digests[state.digest] += 1

    def remove(self, state: FrozenState) -> bool:
        """Decrement the reference count of `state`; whether no state of these values is left."""
        self.num_names -= 1
        self._names[state] -= 1
        self._digests[state.digest] -= 1
        if self._names[state] == 0:
            del self._names[state]
            self.num_bytes -= state.num_bytes
        if self._digests[state.digest] > 0:
            return False
        del self._digests[state.digest]
        return True

    def growth(self, added: Iterable[FrozenState], removed: Iterable[FrozenState]) -> int:
        """Return by how many bytes the total would change; negative where it would shrink."""
        change = Counter(added)
        change.subtract(removed)
        before = self._names
        return sum(
            state.num_bytes * (int(before[state] + count > 0) - int(before[state] > 0))
            for state, count in change.items()
        )
