"""What bounds the named states of clients: counts of names and bytes by namespace, quotas, and owners' leases."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rnn_engine.errors import InvalidRequestError, OverloadedError
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState, split_name
from rnn_engine_states.named.quota import DEFAULT_TTL, Quota


class ReferenceCounts:
    """Counts the names of each state, and the bytes of all, once for each state."""

    def __init__(self) -> None:
        self._names: Counter[FrozenState] = Counter()
        self._digests: Counter[str] = Counter()
        self.num_bytes = 0
        self.num_names = 0

    def add(self, state: FrozenState) -> None:
        """Increment the reference count of `state`, because one more name stands for it."""
        if state not in self._names:
            self.num_bytes += state.num_bytes
        self.num_names += 1
        self._names[state] += 1
        self._digests[state.digest] += 1

    def remove(self, state: FrozenState) -> bool:
        """Decrement the reference count of `state`. Return True if no state with its digest is left."""
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
        """Return the change of `num_bytes` if states in `added` got a name and those in `removed` lost one."""
        change = Counter(added)
        change.subtract(removed)
        before = self._names
        return sum(
            state.num_bytes * (int(before[state] + count > 0) - int(before[state] > 0))
            for state, count in change.items()
        )


class Quotas:
    """Counts the states of each namespace, and checks new ones against the namespace's quota. Not thread-safe."""

    def __init__(self, quota: Quota, capacity: int) -> None:
        self.num_bytes = capacity // 4 if quota.num_bytes is None else quota.num_bytes
        self._quota = quota
        self._counts: defaultdict[str, ReferenceCounts] = defaultdict(ReferenceCounts)

    def add(self, entry: NamedState) -> None:
        self._counts[entry.namespace].add(entry.frozen)

    def remove(self, entry: NamedState) -> None:
        counts = self._counts[entry.namespace]
        counts.remove(entry.frozen)
        if counts.num_names == 0:
            del self._counts[entry.namespace]

    def of(self, namespace: str) -> ReferenceCounts:
        """Return the counts of a namespace's states. Callers must not change them."""
        return self._counts.get(namespace, ReferenceCounts())

    def check_room(self, namespace: str, num_bytes: int, num_names: int, retry_after: float) -> None:
        """Raise OverloadedError, which advises `retry_after`, if more would exceed a namespace's quota."""
        counts = self.of(namespace)
        for added, what, used, most in (
            (num_names, "names", counts.num_names, self._quota.names),
            (num_bytes, "bytes", counts.num_bytes, self.num_bytes),
        ):
            if namespace and added > 0 and used + added > most:
                raise OverloadedError(
                    f"states: no room for {added} more {what} of the API key {namespace!r}: it has {used} of at most "
                    f"{most}; delete states, or wait until a lease ends",
                    retry_after=retry_after,
                )

    def check_ttl(self, name: str, ttl: float | None) -> None:
        """Raise InvalidRequestError if the quota of the namespace in `name` does not allow the time to live `ttl`."""
        if split_name(name)[0] and ttl is not None and ttl > self._quota.ttl:
            raise InvalidRequestError(
                "ttl", ttl, f"at most {self._quota.ttl:.0f} seconds, the longest lease of an API key"
            )


# Owners and their leases: how long the states of an owner stay without use, and which owner's are dropped first.


@dataclass(slots=True, eq=False)
class Lease:
    """The lease of an owner, which keeps the owner's states until none of them has been used for `ttl` seconds."""

    owner: str
    number: int  # grows from one lease to the next: the greatest is the newest
    ttl: float
    expires: float  # seconds, by the clock of `Leases`


class Leases:
    """The leases of all owners, except those that have expired or were ended. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without leases. `clock` returns seconds and never goes back."""
        self._clock = clock
        self._last_number = 0
        self._by_owner: dict[str, Lease] = {}
        self.touched: set[str] = set()  # the owners whose leases were renewed or ended since the set was cleared
        self._soonest = math.inf  # seconds by `clock`: no lease expires before

    def renew(self, owner: str, ttl: float | None = None) -> Lease:
        """Restart the time to live of the owner's lease, or create a lease if there is none. Return the lease.

        `ttl` replaces the lease's time to live; None leaves it unchanged, or is `DEFAULT_TTL` for a new lease.
        """
        now = self._clock()
        lease = self._by_owner.get(owner)
        if lease is None:
            self._last_number += 1
            lease = self._by_owner[owner] = Lease(owner, self._last_number, DEFAULT_TTL, now)
        if ttl is not None:
            lease.ttl = ttl
        lease.expires = now + lease.ttl
        self._soonest = min(self._soonest, lease.expires)
        self.touched.add(owner)
        return lease

    def restore(self, owner: str, number: int, ttl: float, used: float) -> None:
        """Add or replace a lease of another table with its number there, renewed last at the time `used`."""
        lease = self._by_owner[owner] = Lease(owner, number, ttl, used + ttl)
        self._last_number = max(self._last_number, number)
        self._soonest = min(self._soonest, lease.expires)

    def find(self, owner: str) -> Lease | None:
        return self._by_owner.get(owner)

    def end(self, owner: str) -> None:
        """Remove the owner's lease, if it has one. The owner's next `renew` creates a new lease."""
        self._by_owner.pop(owner, None)
        self.touched.add(owner)

    def end_expired(self) -> list[Lease]:
        now = self._clock()
        if now < self._soonest:
            return []
        ended = [lease for lease in self._by_owner.values() if lease.expires <= now]
        for lease in ended:
            self.end(lease.owner)
        self._soonest = min((lease.expires for lease in self._by_owner.values()), default=math.inf)
        return ended

    def newest_first(self) -> list[Lease]:
        """Return the leases of all owners, ordered from the newest to the oldest."""
        return sorted(self._by_owner.values(), key=lambda lease: -lease.number)

    def seconds_left(self, lease: Lease) -> float:
        """Return how many seconds remain until a lease expires if it is not renewed; 0 if it has expired."""
        return max(lease.expires - self._clock(), 0.0)

    def __len__(self) -> int:
        return len(self._by_owner)
