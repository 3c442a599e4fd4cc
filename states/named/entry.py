"""A named state, and what is recorded about it: retention, leases, quotas, reference counts, tombstones.

A plain name, such as `talk`, is shared by all clients. A name in a namespace, such as `ann/talk`, belongs to the client
of that namespace. The owner of a lease is in the same namespace as its states.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rnn_engine.errors import InvalidRequestError, OverloadedError, check_finite
from states.files.reading import StateForm
from states.frozen import NO_INITIAL_STATE, FrozenState


class Tombstones:
    """The names that were deleted most recently, each with the reason."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._reasons: dict[str, str] = {}

    def note(self, name: str, reason: str) -> None:
        """Record why a name was deleted; beyond the limit, drop the oldest record."""
        self._reasons.pop(name, None)
        self._reasons[name] = reason
        if len(self._reasons) > self._limit:
            del self._reasons[next(iter(self._reasons))]

    def revive(self, name: str) -> None:
        """Drop the record of a name that is in use again."""
        self._reasons.pop(name, None)

    def reason(self, name: str) -> str | None:
        """Return why a name was deleted; None if it is not recorded."""
        return self._reasons.get(name)


MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class NamedState:
    """A name and the state it stands for at one moment; two are equal if their ids and versions are.

    It stays usable after the name is deleted or stands for another state.
    """

    id: uuid.UUID  # stays the same when the name moves or the state advances
    version: int  # greater after each change; no two states of a store have the same
    name: str = field(compare=False)
    form: StateForm = field(compare=False)
    source: str = field(compare=False)  # the file's name, or what else it came from
    created: float = field(compare=False)  # Unix time, seconds
    owner: str | None = field(compare=False)  # of the lease that keeps it; None = persistent
    frozen: FrozenState = field(compare=False)
    read_only: bool = field(default=False, compare=False)  # the operator loads it at every start
    expires_in: float | None = field(default=None, compare=False)  # seconds without use, when a `StateStore` gave it

    @property
    def persistent(self) -> bool:
        """Whether the state stays until it is deleted, and needs no lease."""
        return self.owner is None

    @property
    def namespace(self) -> str:
        """The namespace of the name; empty for a shared state."""
        return split_name(self.name)[0]

    @property
    def plain_name(self) -> str:
        """The name without its namespace, as the client that it belongs to writes it."""
        return split_name(self.name)[1]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a new name is kept: as long as an owner's lease lasts, or until it is deleted."""

    owner: str | None = None  # None = the state's own name
    ttl: float | None = None  # seconds without use; None = that of the owner's lease, or an hour if it has none yet
    persistent: bool = False
    shared: bool = False  # for all clients, if the server gives each its namespace

    def check(self) -> None:
        """Raise InvalidRequestError for the first field whose value is not allowed."""
        if self.owner is not None:
            check_full_name(self.owner, "owner")
        if self.persistent and self.owner is not None:
            raise InvalidRequestError("owner", self.owner, "null for a persistent state, which belongs to no lease")
        if self.persistent and self.ttl is not None:
            raise InvalidRequestError("ttl", self.ttl, "null for a persistent state, which belongs to no lease")
        if self.ttl is not None and not 0 < self.ttl <= MAX_TTL:
            raise InvalidRequestError("ttl", self.ttl, f"a number of seconds above 0 and at most {MAX_TTL:.0f}")

    def owner_of(self, name: str) -> str | None:
        """Return the owner of a state with this name; None if it is persistent."""
        return None if self.persistent else self.owner or name


def check_changeable(entry: NamedState, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, if the state is read-only.

    States that the operator loads at every start are read-only for everybody, because the next start would undo a
    change.
    """
    if entry.read_only:
        raise InvalidRequestError(
            field,
            entry.name,
            "a state that can be changed; this one is read-only, since the server's operator loads it at every "
            "start; copy it under another name",
        )


def full_name(namespace: str, name: str) -> str:
    """Return the plain `name` with its namespace; it stays plain if the namespace is empty."""
    return f"{namespace}/{name}" if namespace else name


def split_name(name: str) -> tuple[str, str]:
    """Split a name into its namespace, which is empty for a shared name, and its plain name."""
    namespace, _, plain = name.rpartition("/")
    return namespace, plain


def parse_id(text: str) -> uuid.UUID | None:
    """Return the id that `text` spells in any of the forms of a UUID; None if it is no UUID."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def check_new_name(name: str, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, if a new state can't have this plain name.

    Ids are looked up before names, so a state whose name is also an id might be unreachable. States of earlier
    versions may have such names and keep them.
    """
    check_name(name, field)
    if parse_id(name) is not None:
        raise InvalidRequestError(field, name, "a name that is not a UUID, since state ids are UUIDs")


def check_name(name: str, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, if this can't be the plain name of a state or an owner."""
    if not (len(name) <= MAX_NAME and _is_sayable(name)) or name == NO_INITIAL_STATE:
        raise InvalidRequestError(
            field,
            name,
            f"1 to {MAX_NAME} printable characters without slashes and without spaces at the ends, not only dots, "
            f"and not {NO_INITIAL_STATE!r}",
        )


def _is_sayable(name: str) -> bool:
    return name.isprintable() and not set(name) & set("/\\") and name.strip() == name and name.strip(".") != ""


def check_full_name(name: str, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, if the namespace or the plain name is not allowed."""
    namespace, plain = split_name(name)
    for part in (namespace, plain) if namespace else (name,):
        check_name(part, field)


class ReferenceCounts:
    """How many names stand for each state, and the bytes of all states; a state with several names counts once."""

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
        """Decrement the reference count of `state`. Return True if no state of these values is left."""
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
        """Return by how many bytes the total would change; negative if it would shrink."""
        change = Counter(added)
        change.subtract(removed)
        before = self._names
        return sum(
            state.num_bytes * (int(before[state] + count > 0) - int(before[state] > 0))
            for state, count in change.items()
        )


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one namespace. Shared states have no quota."""

    num_bytes: int | None = None  # of its states; None = a quarter of the capacity for all states
    names: int = 1000
    ttl: float = 7 * 86400.0  # seconds; the longest time without use that a lease may be given

    def __post_init__(self) -> None:
        """Raise InvalidRequestError unless `ttl` is a finite number from 0 on."""
        check_finite("ttl", self.ttl)


class Quotas:
    """The names and bytes in use in each namespace, checked against its quota. Not thread-safe."""

    def __init__(self, quota: Quota, capacity: int) -> None:
        self.num_bytes = capacity // 4 if quota.num_bytes is None else quota.num_bytes
        self._quota = quota
        self._counts: dict[str, ReferenceCounts] = {}

    def add(self, entry: NamedState) -> None:
        """Add a state to the count of its namespace."""
        self._counts.setdefault(entry.namespace, ReferenceCounts()).add(entry.frozen)

    def remove(self, entry: NamedState) -> None:
        """Remove a state from the count of its namespace."""
        counts = self._counts[entry.namespace]
        counts.remove(entry.frozen)
        if counts.num_names == 0:
            del self._counts[entry.namespace]

    def used(self, namespace: str) -> int:
        """Return the bytes that the states of a namespace take; copies share theirs."""
        return self._of(namespace).num_bytes

    def growth(self, namespace: str, added: Iterable[FrozenState], removed: Iterable[FrozenState] = ()) -> int:
        """Return by how many bytes the states of a namespace would change; negative if they would shrink."""
        return self._of(namespace).growth(added, removed)

    def check_room(self, namespace: str, num_bytes: int, num_names: int, retry_after: float) -> None:
        """Raise OverloadedError if `num_bytes` and `num_names` more exceed the quota of a namespace."""
        if not namespace:
            return
        counts = self._of(namespace)
        if num_names > 0 and counts.num_names + num_names > self._quota.names:
            raise OverloadedError(
                f"states: no room for {num_names} more names of the API key {namespace!r}: it has "
                f"{counts.num_names} of at most {self._quota.names}; delete states, or wait until a lease ends",
                retry_after=retry_after,
            )
        if num_bytes > 0 and counts.num_bytes + num_bytes > self.num_bytes:
            raise OverloadedError(
                f"states: no room for {num_bytes} more bytes of the API key {namespace!r}: it has "
                f"{counts.num_bytes} of at most {self.num_bytes}; delete states, or wait until a lease ends",
                retry_after=retry_after,
            )

    def check_ttl(self, name: str, ttl: float | None) -> None:
        """Raise InvalidRequestError if `ttl` exceeds the quota of the namespace of a name."""
        if split_name(name)[0] and ttl is not None and ttl > self._quota.ttl:
            raise InvalidRequestError(
                "ttl", ttl, f"at most {self._quota.ttl:.0f} seconds, the longest lease of an API key"
            )

    def _of(self, namespace: str) -> ReferenceCounts:
        return self._counts.get(namespace, _NOTHING)


_NOTHING = ReferenceCounts()

# Owners and their leases: how long the states of an owner stay without use, and which owner's are dropped first.

DEFAULT_TTL = 3600.0
MAX_TTL = 30 * 86400.0


@dataclass(slots=True, eq=False)
class Lease:
    """The lease that keeps all states of an owner; it expires when none of them was used for `ttl` seconds."""

    owner: str
    number: int  # grows from one lease to the next: the greatest is the newest
    ttl: float
    expires: float  # seconds, by the clock of `Leases`


@dataclass(frozen=True, slots=True)
class OwnerLease:
    """The lease and the states of an owner at one moment."""

    owner: str
    ttl: float  # seconds
    expires_in: float  # seconds, if none of them is used
    names: tuple[str, ...]  # of its states
    num_bytes: int  # of these states, as if they shared no arrays


class Leases:
    """The leases that have not ended. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds and must never go back."""
        self._clock = clock
        self._last_number = 0
        self._by_owner: dict[str, Lease] = {}
        self._soonest = math.inf  # nothing expires before

    def renew(self, owner: str, ttl: float | None = None) -> Lease:
        """Begin the owner's lease, or restart its time. If `ttl` is None, the lease keeps its `ttl`, an hour if new."""
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
        """Enter a lease read from elsewhere, in place of the owner's lease if it has one.

        `used` is the time of its last use, by the clock.
        """
        lease = self._by_owner[owner] = Lease(owner, number, ttl, used + ttl)
        self._last_number = max(self._last_number, number)
        self._soonest = min(self._soonest, lease.expires)

    def find(self, owner: str) -> Lease | None:
        """Return the owner's lease, if it has one."""
        return self._by_owner.get(owner)

    def end(self, owner: str) -> None:
        """End the owner's lease, if it has one. The owner's next use begins a new lease, which is then the newest."""
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
