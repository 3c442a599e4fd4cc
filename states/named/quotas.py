"""How much one namespace may have, so that no client takes all the room."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rnn_engine.checks import check_finite
from rnn_engine.errors import InvalidRequestError, OverloadedError
from states.frozen import FrozenState
from states.named.entry import NamedState, split_name
from states.named.reference_counts import ReferenceCounts


@dataclass(frozen=True, slots=True)
class Quota:
    """What one namespace may have. Shared states have no quota."""

    num_bytes: int | None = None  # of its states; None = a quarter of what all may have
    names: int = 1000
    ttl: float = 7 * 86400.0  # seconds; the longest that a lease of it may go without use

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("ttl", self.ttl)


class Quotas:
    """The states in each namespace, and what of them is too much. Not thread-safe."""

    def __init__(self, quota: Quota, capacity: int) -> None:
        self.num_bytes = capacity // 4 if quota.num_bytes is None else quota.num_bytes
        self._quota = quota
        self._counts: dict[str, ReferenceCounts] = {}

    def add(self, entry: NamedState) -> None:
        """Count a state."""
        self._counts.setdefault(entry.namespace, ReferenceCounts()).add(entry.frozen)

    def remove(self, entry: NamedState) -> None:
        """Count a state no longer."""
        counts = self._counts[entry.namespace]
        counts.remove(entry.frozen)
        if counts.num_names == 0:
            del self._counts[entry.namespace]

    def used(self, namespace: str) -> int:
        """Return the bytes that a namespace has; copies share theirs."""
        return self._of(namespace).num_bytes

    def growth(self, namespace: str, added: Iterable[FrozenState], removed: Iterable[FrozenState] = ()) -> int:
        """Return by how many bytes a namespace would change."""
        return self._of(namespace).growth(added, removed)

    def check_room(self, namespace: str, num_bytes: int, num_names: int, retry_after: float) -> None:
        """Raise OverloadedError where a namespace may not have so much more."""
        if not namespace:
            return
        counts = self._of(namespace)
        if num_names > 0 and counts.num_names + num_names > self._quota.names:
            raise OverloadedError(
                f"states: no room for {num_names} more names of {namespace!r}: it has {counts.num_names} of the "
                f"{self._quota.names} that a key may have; delete states, or wait until a lease ends",
                retry_after=retry_after,
            )
        if num_bytes > 0 and counts.num_bytes + num_bytes > self.num_bytes:
            raise OverloadedError(
                f"states: no room for {num_bytes} more bytes of {namespace!r}: it has {counts.num_bytes} of the "
                f"{self.num_bytes} that a key may have; delete states, or wait until a lease ends",
                retry_after=retry_after,
            )

    def check_ttl(self, name: str, ttl: float | None) -> None:
        """Raise InvalidRequestError for a lease that is too long for the namespace of a name."""
        if split_name(name)[0] and ttl is not None and ttl > self._quota.ttl:
            raise InvalidRequestError("ttl", ttl, f"at most {self._quota.ttl:.0f} seconds, as a key may have")

    def _of(self, namespace: str) -> ReferenceCounts:
        return self._counts.get(namespace, _NOTHING)


_NOTHING = ReferenceCounts()
