"""The parts of the named state table: named states, leases, quotas, reference counts and tombstones.

A plain name, as `talk`, is of a shared state, which every client may use. A name with a namespace, as `ann/talk`, is of
a state of the client that has this namespace. The owner of a lease is in the same namespace as the lease's states.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rnn_engine.errors import InvalidRequestError, OverloadedError
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import NO_INITIAL_STATE, FrozenState
from rnn_engine_states.named.quota import DEFAULT_TTL, MAX_TTL, Quota


class Tombstones:
    """The names of states that were deleted most recently, each with the reason for its deletion."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._reasons: dict[str, str] = {}

    def note(self, name: str, reason: str) -> None:
        """Record that the state `name` was deleted, and why.

        The oldest record is dropped if there are more than the limit.
        """
        self._reasons.pop(name, None)
        self._reasons[name] = reason
        if len(self._reasons) > self._limit:
            del self._reasons[next(iter(self._reasons))]

    def revive(self, name: str) -> None:
        """Remove the record that the state `name` was deleted, because the name is in use again."""
        self._reasons.pop(name, None)

    def reason(self, name: str) -> str | None:
        """Return why the state `name` was deleted, or None if there is no record of it."""
        return self._reasons.get(name)


MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class NamedState:
    """A state under a name at one moment. Two are equal if their ids and versions are equal.

    It stays usable after the name was deleted or stands for another state.
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
        """Whether the named state is kept until it is deleted. Others are kept only while their owner's lease lasts."""
        return self.owner is None

    @property
    def namespace(self) -> str:
        """The namespace in the state's name, or the empty string for a shared state."""
        return split_name(self.name)[0]

    @property
    def plain_name(self) -> str:
        """The state's name without its namespace."""
        return split_name(self.name)[1]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a new named state is kept: while its owner's lease lasts, or, if persistent, until it is deleted."""

    owner: str | None = None  # None = the state's own name
    ttl: float | None = None  # seconds without use; None = that of the owner's lease, or an hour if it has none yet
    persistent: bool = False
    shared: bool = False  # for all clients, if the server gives each its namespace

    def check(self) -> None:
        """Check the fields of a retention. Raises InvalidRequestError for the first value that is not allowed."""
        if self.owner is not None:
            check_full_name(self.owner, "owner")
        if self.persistent and self.owner is not None:
            raise InvalidRequestError("owner", self.owner, "null for a persistent state, which belongs to no lease")
        if self.persistent and self.ttl is not None:
            raise InvalidRequestError("ttl", self.ttl, "null for a persistent state, which belongs to no lease")
        if self.ttl is not None and not 0 < self.ttl <= MAX_TTL:
            raise InvalidRequestError("ttl", self.ttl, f"a number of seconds above 0 and at most {MAX_TTL:.0f}")

    def owner_of(self, name: str) -> str | None:
        """Return the owner whose lease keeps a state called `name` under this retention, None if it is persistent."""
        return None if self.persistent else self.owner or name


def check_changeable(entry: NamedState, field: str) -> None:
    """Raise InvalidRequestError, which names `field`, if a named state is read-only.

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
    """Return a state's `name` with its namespace, as in `ann/talk`. With an empty namespace, return `name` alone."""
    return f"{namespace}/{name}" if namespace else name


def split_name(name: str) -> tuple[str, str]:
    """Return the namespace and the plain name in the full name of a state. A shared state's namespace is empty."""
    namespace, _, plain = name.rpartition("/")
    return namespace, plain


def parse_id(text: str) -> uuid.UUID | None:
    """Return the UUID that `text` spells in any of a UUID's notations, or None if it is no UUID."""
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
    """Raise InvalidRequestError, which names `field`, unless `name` is a valid plain name of a state or an owner."""
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
    """Raise InvalidRequestError, which names `field`, unless `name` may name a state, with or without a namespace."""
    namespace, plain = split_name(name)
    for part in (namespace, plain) if namespace else (name,):
        check_name(part, field)


class ReferenceCounts:
    """Counts how many names each state has, and the bytes of all states.

    A state with several names counts its bytes once.
    """

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
        """Return how `num_bytes` would change if each state in `added` got a name and each in `removed` lost one.

        The change is in bytes, and negative if the states would take less.
        """
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
        self._counts: dict[str, ReferenceCounts] = {}

    def add(self, entry: NamedState) -> None:
        """Add the state `entry` to the counts of its namespace."""
        self._counts.setdefault(entry.namespace, ReferenceCounts()).add(entry.frozen)

    def remove(self, entry: NamedState) -> None:
        """Subtract the state `entry` from the counts of its namespace."""
        counts = self._counts[entry.namespace]
        counts.remove(entry.frozen)
        if counts.num_names == 0:
            del self._counts[entry.namespace]

    def used(self, namespace: str) -> int:
        """Return the bytes of a namespace's states. A state with several names counts once."""
        return self._of(namespace).num_bytes

    def growth(self, namespace: str, added: Iterable[FrozenState], removed: Iterable[FrozenState] = ()) -> int:
        """Return by how many bytes a namespace would grow if it got the states `added` and lost those in `removed`."""
        return self._of(namespace).growth(added, removed)

    def check_room(self, namespace: str, num_bytes: int, num_names: int, retry_after: float) -> None:
        """Raise OverloadedError if `num_bytes` more bytes and `num_names` more names would exceed a namespace's quota.

        `retry_after` is the number of seconds that the error advises to wait.
        """
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
        """Raise InvalidRequestError if the quota of the namespace in `name` does not allow the time to live `ttl`."""
        if split_name(name)[0] and ttl is not None and ttl > self._quota.ttl:
            raise InvalidRequestError(
                "ttl", ttl, f"at most {self._quota.ttl:.0f} seconds, the longest lease of an API key"
            )

    def _of(self, namespace: str) -> ReferenceCounts:
        return self._counts.get(namespace, _NOTHING)


_NOTHING = ReferenceCounts()

# Owners and their leases: how long the states of an owner stay without use, and which owner's are dropped first.


@dataclass(slots=True, eq=False)
class Lease:
    """The lease of an owner, which keeps the owner's states until none of them has been used for `ttl` seconds."""

    owner: str
    number: int  # grows from one lease to the next: the greatest is the newest
    ttl: float
    expires: float  # seconds, by the clock of `Leases`


@dataclass(frozen=True, slots=True)
class OwnerLease:
    """A description of a lease at one moment: its owner, time to live and states."""

    owner: str
    ttl: float  # seconds
    expires_in: float  # seconds, if none of them is used
    names: tuple[str, ...]  # of its states
    num_bytes: int  # of these states, as if they shared no arrays


class Leases:
    """The leases of all owners, except those that have expired or were ended. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without leases. `clock` returns seconds and never goes back."""
        self._clock = clock
        self._last_number = 0
        self._by_owner: dict[str, Lease] = {}
        self.soonest = math.inf  # seconds by `clock`: no lease expires before

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
        self.soonest = min(self.soonest, lease.expires)
        return lease

    def restore(self, owner: str, number: int, ttl: float, used: float) -> None:
        """Add a copy of a lease from another table of named states, under the number that it has there.

        It replaces the owner's lease, if there is one. `used` is the clock's time when the lease was last renewed.
        """
        lease = self._by_owner[owner] = Lease(owner, number, ttl, used + ttl)
        self._last_number = max(self._last_number, number)
        self.soonest = min(self.soonest, lease.expires)

    def find(self, owner: str) -> Lease | None:
        """Return the owner's lease, or None if it has none."""
        return self._by_owner.get(owner)

    def end(self, owner: str) -> None:
        """Remove the owner's lease, if it has one. The owner's next `renew` creates a new lease."""
        self._by_owner.pop(owner, None)

    def end_expired(self) -> list[Lease]:
        """Remove and return the leases that have expired."""
        now = self._clock()
        ended = [lease for lease in self._by_owner.values() if lease.expires <= now]
        for lease in ended:
            del self._by_owner[lease.owner]
        self.soonest = min((lease.expires for lease in self._by_owner.values()), default=math.inf)
        return ended

    def newest_first(self) -> list[Lease]:
        """Return the leases of all owners, ordered from the newest to the oldest."""
        return sorted(self._by_owner.values(), key=lambda lease: -lease.number)

    def seconds_left(self, lease: Lease) -> float:
        """Return how many seconds remain until a lease expires if it is not renewed; 0 if it has expired."""
        return max(lease.expires - self._clock(), 0.0)

    def __len__(self) -> int:
        return len(self._by_owner)
