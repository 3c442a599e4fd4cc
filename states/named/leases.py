"""Owners and their leases: how long what an owner has stays without being used, and whose gives way first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_TTL = 3600.0
MAX_TTL = 30 * 86400.0


@dataclass(slots=True, eq=False)
class Lease:
    """What an owner has from its first use on, until it has not been used for `ttl` seconds."""

    owner: str
    number: int  # grows from one lease to the next: the greatest is the newest
    ttl: float
    expires: float  # by the clock


@dataclass(frozen=True, slots=True)
class OwnerLease:
    """What an owner has at one moment."""

    owner: str
    ttl: float  # seconds
    expires_in: float  # seconds, if it is not used
    names: tuple[str, ...]  # of its states
    num_bytes: int  # of these, as if they shared nothing


class Leases:
    """The leases that have not ended. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never go back."""
        self._clock = clock
        self._last_number = 0
        self._by_owner: dict[str, Lease] = {}
        self._soonest = math.inf  # nothing expires before

    def renew(self, owner: str, ttl: float | None = None) -> Lease:
        """Begin the owner's lease, or restart its time. `ttl` None leaves it as it is."""
        now = self._clock()
        lease = self._by_owner.get(owner)
        if lease is None:
            self._last_number += 1
            lease = self._by_owner[owner] = Lease(owner, self._last_number, DEFAULT_TTL, now)
        if ttl is not None:
            lease.ttl = ttl
        lease.expires = now + lease.ttl
        self._soonest = min(self._soonest, lease.expires)
        return lease

    def restore(self, owner: str, number: int, ttl: float, used: float) -> None:
        """Enter a lease as it is elsewhere, in place of the one that the owner has; it was `used` last then."""
        lease = self._by_owner[owner] = Lease(owner, number, ttl, used + ttl)
        self._last_number = max(self._last_number, number)
        self._soonest = min(self._soonest, lease.expires)

    def find(self, owner: str) -> Lease | None:
        """Return the owner's lease, if it has one."""
        return self._by_owner.get(owner)

    def end(self, owner: str) -> None:
        """End the owner's lease, if it has one; its next use begins another, which is the newest then."""
        self._by_owner.pop(owner, None)

    def end_expired(self) -> list[Lease]:
        """End the leases that have expired, and return them."""
        now = self._clock()
        if now < self._soonest:
            return []
        ended = [lease for lease in self._by_owner.values() if lease.expires <= now]
        for lease in ended:
            del self._by_owner[lease.owner]
        self._soonest = min((lease.expires for lease in self._by_owner.values()), default=math.inf)
        return ended

    def newest_first(self) -> list[Lease]:
        """Return all leases, the newest first."""
        return sorted(self._by_owner.values(), key=lambda lease: -lease.number)

    def seconds_left(self, lease: Lease) -> float:
        """Return how long a lease lasts if it is not used."""
        return max(lease.expires - self._clock(), 0.0)

    def __len__(self) -> int:
        return len(self._by_owner)
