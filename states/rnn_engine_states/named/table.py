"""The table of named states in memory. Its leases and quotas decide which states are removed if room is short.

An owner's lease lasts from its first state to its last, unless it expires before because no state was used. If a new
state does not fit, the newest leases of its namespace end, with all their states. A lease ends for it only if it is
newer than the lease of the new state's owner. If that would not free enough, no lease ends and the state is rejected.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rnn_engine.errors import InvalidRequestError, NotFoundError, OverloadedError
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import (
    Lease,
    Leases,
    NamedState,
    OwnerLease,
    Quotas,
    ReferenceCounts,
    Retention,
    Tombstones,
    check_changeable,
    check_full_name,
    check_new_name,
    full_name,
    parse_id,
    split_name,
)
from rnn_engine_states.named.quota import DEFAULT_TTL, Quota


class NameIndex:
    """An index of named states by name, id, owner and namespace.

    Iteration yields them in the order in which they were added.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, NamedState] = {}
        self._by_id: dict[uuid.UUID, NamedState] = {}
        self._of_owner: dict[str, dict[str, NamedState]] = {}  # owner -> name -> state
        self._in_namespace: dict[str, dict[str, NamedState]] = {}  # namespace -> name -> state

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[NamedState]:
        return iter(self._by_name.values())

    def named(self, name: str) -> NamedState | None:
        return self._by_name.get(name)

    def of_id(self, key: uuid.UUID) -> NamedState | None:
        return self._by_id.get(key)

    def owned_by(self, owner: str) -> list[NamedState]:
        return list(self._of_owner.get(owner, {}).values())

    def in_namespace(self, namespace: str) -> list[NamedState]:
        return list(self._in_namespace.get(namespace, {}).values())

    def put(self, entry: NamedState) -> None:
        """Add a named state to the index, replacing the one with the same name, if there is one."""
        if (before := self._by_name.get(entry.name)) is not None:
            self._unlink(before)
        self._by_name[entry.name] = entry
        self._by_id[entry.id] = entry
        self._in_namespace.setdefault(entry.namespace, {})[entry.name] = entry
        if entry.owner is not None:
            self._of_owner.setdefault(entry.owner, {})[entry.name] = entry

    def remove(self, entry: NamedState) -> None:
        """Remove a named state from the index. It must be in the index."""
        del self._by_name[entry.name]
        self._unlink(entry)

    def _unlink(self, entry: NamedState) -> None:
        del self._by_id[entry.id]
        _discard(self._in_namespace, entry.namespace, entry.name)
        if entry.owner is not None:
            _discard(self._of_owner, entry.owner, entry.name)


def _discard(groups: dict[str, dict[str, NamedState]], group: str, name: str) -> None:
    del groups[group][name]
    if not groups[group]:
        del groups[group]


@dataclass(frozen=True, slots=True)
class StateListing:
    """The named states of all clients or of one namespace at one moment, with their size and limit in bytes."""

    entries: tuple[NamedState, ...]  # in the order in which the names were entered
    default: str | None  # the name of the default state
    num_bytes: int  # of all states, or of those of the namespace that is listed; copies share theirs
    capacity: int  # bytes that they may take


@dataclass(frozen=True, slots=True)
class StateUsage:
    """The numbers of named states, leases and bytes in a table at one moment."""

    num_bytes: int  # of all states; copies share theirs
    capacity: int
    names: int
    persistent: int  # of the names
    leases: int
    failed_writes: int = 0  # changes since the start that could not be written to the disk or the shared store


_NAMES_TOLD = 20


class NamedStateTable:
    """The table of named states in memory, with their leases and quotas and the names that were deleted last.

    Not thread-safe.
    """

    def __init__(
        self,
        capacity: int,
        max_names: int,
        clock: Callable[[], float],
        forget: Callable[[str], None],
        quota: Quota,
        *,
        keeps_persistent: bool = True,
    ) -> None:
        """Create a table without states, for at most `capacity` bytes of states and `max_names` names.

        `clock` returns seconds and never goes back. `forget` is called with the digest of a removed state if no name
        stands for a state with this digest any more. If `keeps_persistent` is False, a state can't be persistent: it
        needs a lease.
        """
        self.capacity = capacity
        self.keeps_persistent = keeps_persistent
        self._max_names = max_names
        self._clock = clock
        self.leases = Leases(clock)
        self.default: str | None = None  # a name of the table
        self._forget = forget
        self.quotas = Quotas(quota, capacity)
        self._counts = ReferenceCounts()
        self._index = NameIndex()
        self._tombstones = Tombstones()
        self.last_version = 0

    @property
    def num_bytes(self) -> int:
        return self._counts.num_bytes

    def entries(self, namespace: str | None = None) -> tuple[NamedState, ...]:
        """Return all named states, or those of a namespace, in the order in which their names were entered."""
        return tuple(self._index if namespace is None else self._index.in_namespace(namespace))

    def next_version(self) -> int:
        """Return a version number for a named state, greater than all earlier ones."""
        self.last_version += 1
        return self.last_version

    def end_expired(self) -> None:
        """Remove the states whose leases have expired, and these leases."""
        if self._clock() < self.leases.soonest:
            return
        for lease in self.leases.end_expired():
            self._drop_all_of(lease.owner, f"its lease ended after {lease.ttl:g} seconds without use")

    def leases_of(self, namespace: str | None) -> list[OwnerLease]:
        """Return descriptions of the leases in a namespace, or of all leases if it is None, the newest first."""
        return [
            self._described(lease)
            for lease in self.leases.newest_first()
            if namespace is None or split_name(lease.owner)[0] == namespace
        ]

    def end_lease(self, owner: str) -> OwnerLease:
        """End an owner's lease and remove all its states. Return the description of the lease before its end.

        Raises NotFoundError if the owner has no lease.
        """
        lease = self.leases.find(owner)
        if lease is None:
            raise NotFoundError(f"owner {split_name(owner)[1]!r} has no lease")
        ended = self._described(lease)
        self._drop_all_of(owner, "its owner's lease was ended")
        self.leases.end(owner)
        return ended

    def _described(self, lease: Lease) -> OwnerLease:
        owned = self._index.owned_by(lease.owner)
        names, num_bytes = tuple(entry.name for entry in owned), sum(entry.frozen.num_bytes for entry in owned)
        return OwnerLease(lease.owner, lease.ttl, self.leases.seconds_left(lease), names, num_bytes)

    def listing(self, namespace: str | None) -> StateListing:
        """Return all named states, or those of a namespace, with the time until each expires."""
        used, capacity = self.num_bytes, self.capacity
        if namespace:
            used, capacity = self.quotas.used(namespace), self.quotas.num_bytes
        return StateListing(tuple(map(self.shown, self.entries(namespace))), self.default, used, capacity)

    def usage(self, failed_writes: int) -> StateUsage:
        """Return the numbers of states, leases and bytes in the table, together with the caller's `failed_writes`."""
        entries = self.entries()
        persistent = sum(entry.persistent for entry in entries)
        return StateUsage(self.num_bytes, self.capacity, len(entries), persistent, len(self.leases), failed_writes)

    def shown(self, entry: NamedState) -> NamedState:
        """Return a copy of the named state `entry` that shows how many seconds remain until its lease expires.

        They are in `expires_in`, which is None without a lease.
        """
        lease = None if entry.owner is None else self.leases.find(entry.owner)
        return replace(entry, expires_in=None if lease is None else self.leases.seconds_left(lease))

    def use(self, name_or_id: str) -> NamedState:
        """Return the state whose id or, if no id matches, whose name is `name_or_id`, and renew its owner's lease.

        Raises NotFoundError.
        """
        entry = self.get(name_or_id)
        if entry.owner is not None:
            self.leases.renew(entry.owner)
        return entry

    def check_place(self, name: str, retention: Retention, num_bytes: int, num_names: int = 1) -> None:
        """Raise the error that `put` would raise for a state of `num_bytes` bytes under `name`, if there is one.

        Changes nothing. `num_names` is how many names would be added.
        """
        self._check_retention(name, retention)
        self.check_free(name, "name")
        check_new_name(split_name(name)[1], "name")
        self._check_quota(split_name(name)[0], num_bytes, num_names)
        self._check_room(num_bytes, retention.owner_of(name), num_names)

    def put(
        self,
        name: str,
        frozen: FrozenState,
        retention: Retention,
        *,
        source: str,
        form: StateForm,
        key: uuid.UUID | None,
    ) -> NamedState:
        """Add a state to the table under a free name, and return it as a named state. See `StateStore.put`."""
        self.check_place(name, retention, frozen.num_bytes)
        entry = self.make(name, self._renew(retention, name), frozen, form, source, key)
        self.enter(entry)
        return entry

    def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        """Add copies of a named state under `names`, all or none, and return them. See `StateStore.fork`.

        The copies share the state's arrays.
        """
        check_names(names)
        return self.copy(self.use(name_or_id), names, retention)

    def copy(self, origin: NamedState, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        """Add copies of the state `origin` under `names`, all or none, and return them.

        `origin` may be of another table.
        """
        self._check_room(0, None, len(names))
        for namespace, num_names in Counter(split_name(name)[0] for name in names).items():
            grown = self.quotas.growth(namespace, [origin.frozen])
            self._check_quota(namespace, grown, num_names)
        for name in names:
            self.check_place(name, retention, 0)
        owners = [self._renew(retention, name) for name in names]
        entries = tuple(
            self.make(name, owner, origin.frozen, origin.form, f"copy of {origin.plain_name}")
            for name, owner in zip(names, owners, strict=True)
        )
        for entry in entries:
            self.enter(entry)
        return entries

    def move(self, name_or_id: str, name: str, retention: Retention) -> tuple[NamedState, NamedState]:
        """Change the name or owner of a state, and return the named state before and after the change.

        See `StateStore.move`.
        """
        old = self.use(name_or_id)
        check_changeable(old, "state")
        if name == old.name:
            self._check_retention(name, retention)
        else:
            self.check_place(name, retention, 0, num_names=0)
            if (namespace := split_name(name)[0]) != old.namespace:
                self._check_quota(namespace, self.quotas.growth(namespace, [old.frozen]), 1)
        new = replace(old, version=self.next_version(), name=name, owner=self._renew(retention, name))
        self.swap(old, new)
        return old, new

    def compare_and_set(self, old: NamedState, frozen: FrozenState, source: str) -> tuple[NamedState, NamedState]:
        """Replace the values of the named state `old` if it has not changed since then.

        Return the named state before and after the change. See `StateStore.compare_and_set`.
        """
        held = self.of_id(old.id)
        if held is None or held != old:
            raise NotFoundError(f"state {old.plain_name!r} was removed or replaced meanwhile")
        check_changeable(held, "state")
        self._check_quota(held.namespace, self.quotas.growth(held.namespace, [frozen], [held.frozen]), 0)
        if held.owner is not None:
            self.leases.renew(held.owner)
        version, now = self.next_version(), time.time()
        new = replace(held, version=version, frozen=frozen, source=source, form="full", created=now)
        self.swap(held, new)
        return held, new

    def delete(self, name_or_id: str) -> NamedState:
        """Remove a state from the table, and return it. See `StateStore.delete`."""
        entry = self.get(name_or_id)
        check_changeable(entry, "state")
        self.drop(entry, "it was removed")
        return entry

    def make(
        self,
        name: str,
        owner: str | None,
        frozen: FrozenState,
        form: StateForm,
        source: str,
        key: uuid.UUID | None = None,
    ) -> NamedState:
        """Return a new named state without adding it to the table. Its id is `key`, or random if `key` is in use.

        Without `key`, the id is computed from the name and the values, so that it is the same at every start.
        """
        key = key or uuid.uuid5(uuid.NAMESPACE_OID, f"{name}\n{frozen.digest}")
        if self.of_id(key) is not None or self.named(str(key)) is not None:
            key = uuid.uuid4()
        return NamedState(key, self.next_version(), name, form, source, time.time(), owner, frozen)

    def find(self, name_or_id: str) -> NamedState | None:
        """Return the state whose id or, if no id matches, whose name is `name_or_id`. Return None if there is none."""
        key = parse_id(name_or_id)
        return (None if key is None else self._index.of_id(key)) or self._index.named(name_or_id)

    def get(self, name_or_id: str) -> NamedState:
        """Return the state whose id or, if no id matches, whose name is `name_or_id`.

        Raises the error that `missing` returns.
        """
        entry = self.find(name_or_id)
        if entry is None:
            raise self.missing(name_or_id)
        return entry

    def missing(self, name_or_id: str, namespace: str = "") -> NotFoundError:
        """Return the error for a state that does not exist. It says why the state was deleted, if that is known.

        The error also lists the names of the namespace and the shared names.
        """
        reason = self._tombstones.reason(full_name(namespace, name_or_id))
        fate = "does not exist" if reason is None else f"is gone: {reason}"
        return NotFoundError(f"state {name_or_id!r} {fate}; there are: {self._known_names(namespace)}")

    def holds(self, entry: NamedState) -> bool:
        """Return True if the table still has the named state `entry` in the same version."""
        return self._index.of_id(entry.id) == entry

    def named(self, name: str) -> NamedState | None:
        """Return the named state called `name`, or None if there is none."""
        return self._index.named(name)

    def of_id(self, key: uuid.UUID) -> NamedState | None:
        """Return the named state with the id `key`, or None if there is none."""
        return self._index.of_id(key)

    def check_free(self, name: str, field: str) -> None:
        """Raise InvalidRequestError, which names `field`, if `name` is no valid full name or is in use."""
        check_full_name(name, field)
        if (taken := self._index.named(name)) is not None:
            raise name_taken(taken, field)

    def _check_room(self, num_bytes: int, owner: str | None, num_names: int = 1) -> None:
        """Raise OverloadedError if the table has no room for `num_names` more names and `num_bytes` more bytes.

        Counts the bytes of leases that would end to make room for a state of `owner`.
        """
        if len(self._index) + num_names > self._max_names:
            raise self._too_many(num_names)
        self._find_victims(owner, num_bytes, lambda going: num_bytes + self._counts.growth([], going))

    def _check_quota(self, namespace: str, num_bytes: int, num_names: int) -> None:
        """Raise OverloadedError if `num_bytes` more bytes or `num_names` more names exceed the namespace's quota."""
        self.quotas.check_room(namespace, num_bytes, num_names, self._seconds_to_wait())

    def _renew(self, retention: Retention, name: str) -> str | None:
        """Renew the owner's lease that keeps a state called `name`, or create it if there is none.

        `retention` has the owner. Return the lease's owner, or None for a persistent state, which has no lease.
        """
        owner = retention.owner_of(name)
        if owner is not None:
            self.leases.renew(owner, retention.ttl)
        return owner

    def enter(self, entry: NamedState) -> None:
        """Add the named state `entry` to the table. Its name must be free.

        End newer leases of its namespace if that is needed for room. Raises OverloadedError if there is no room even
        then.
        """
        if len(self._index) >= self._max_names:
            raise self._too_many(1)
        self._make_room(entry.owner, entry.frozen)
        self._index.put(entry)
        self._counts.add(entry.frozen)
        self.quotas.add(entry)
        self._tombstones.revive(entry.name)

    def restore(self, entry: NamedState) -> None:
        """Add a named state from another table, replacing the state with the same id, if there is one.

        Room and leases are not checked: the other table has done so.
        """
        held = self._index.of_id(entry.id)
        if held is not None and held.name != entry.name:
            self._index.remove(held)
            self._tombstones.note(held.name, f"it was renamed to {entry.plain_name!r}")
        self._index.put(entry)
        self._counts.add(entry.frozen)
        self.quotas.add(entry)
        self._tombstones.revive(entry.name)
        if held is not None:
            self._release(held)

    def swap(self, old: NamedState, new: NamedState) -> None:
        """Replace `old`, a named state in the table, by `new`. Raises OverloadedError if there is no room."""
        self._make_room(new.owner, new.frozen, old.frozen)
        if new.name != old.name:
            self._index.remove(old)
            self._tombstones.note(old.name, f"it was renamed to {new.plain_name!r}")
        self._index.put(new)
        self._counts.add(new.frozen)
        self.quotas.add(new)
        self._tombstones.revive(new.name)
        if self.default == old.name:
            self.default = new.name if new.persistent else None
        self._release(old)

    def drop(self, entry: NamedState, reason: str) -> None:
        """Remove a named state from the table. Later requests for its name get an error that shows `reason`.

        The table must have it.
        """
        self._index.remove(entry)
        self._tombstones.note(entry.name, reason)
        if self.default == entry.name:
            self.default = None
        self._release(entry)

    def _check_retention(self, name: str, retention: Retention) -> None:
        """Raise InvalidRequestError if a state called `name` can't be kept in the way that `retention` describes."""
        retention.check()
        self.quotas.check_ttl(name, retention.ttl)
        if retention.persistent and not self.keeps_persistent:
            raise InvalidRequestError(
                "persistent", True, "false, since the server has no folder for persistent states (--state-folder)"
            )

    def _known_names(self, namespace: str) -> str:
        known = {*self._index.in_namespace(namespace), *self._index.in_namespace("")}
        names = sorted(entry.plain_name for entry in known)
        more = len(names) - _NAMES_TOLD
        return (", ".join(names[:_NAMES_TOLD]) or "none") + (f" and {more} more" if more > 0 else "")

    def _release(self, entry: NamedState) -> None:
        """Update leases, quotas and reference counts after the named state `entry` was removed from the index.

        If it was its owner's last state, end the owner's lease.
        """
        if entry.owner is not None and not self._index.owned_by(entry.owner):
            self.leases.end(entry.owner)
        self.quotas.remove(entry)
        if self._counts.remove(entry.frozen):
            self._forget(entry.frozen.digest)

    def _drop_all_of(self, owner: str, reason: str) -> None:
        for entry in self._index.owned_by(owner):
            self.drop(entry, reason)

    def _make_room(self, owner: str | None, added: FrozenState, *removed: FrozenState) -> None:
        growth = self._counts.growth([added], removed)
        for lease in self._find_victims(owner, growth, lambda going: self._counts.growth([added], [*removed, *going])):
            self._drop_all_of(lease.owner, "its lease was ended to make room for an older one")

    def _find_victims(
        self, owner: str | None, num_bytes: int, growth: Callable[[list[FrozenState]], int]
    ) -> list[Lease]:
        """Return the leases to end, newest first, so that `owner` can get `num_bytes` more bytes of states.

        `growth` returns by how many bytes the table would grow if the states in its argument were removed. Raises
        OverloadedError if ending all newer leases would not free enough.
        """
        room = self.capacity - self.num_bytes
        victims: list[Lease] = []
        going: list[FrozenState] = []
        for lease in self._newer_than(owner):
            if growth(going) <= room:
                break
            victims.append(lease)
            going += [entry.frozen for entry in self._index.owned_by(lease.owner)]
        if growth(going) > room:
            raise self._no_room(num_bytes)
        return victims

    def _newer_than(self, owner: str | None) -> list[Lease]:
        """Return the leases in the owner's namespace that are newer than the owner's own lease, the newest first.

        Returns none if the owner has no lease.
        """
        own = None if owner is None else self.leases.find(owner)
        if own is None:
            return []
        namespace = split_name(own.owner)[0]
        newer = (lease for lease in self.leases.newest_first() if lease.number > own.number)
        return [lease for lease in newer if split_name(lease.owner)[0] == namespace]

    def _too_many(self, num_names: int) -> OverloadedError:
        return OverloadedError(
            f"states: no room for {num_names} more names: {len(self._index)} of at most {self._max_names} are "
            "in use; delete states, or wait until a lease ends",
            retry_after=self._seconds_to_wait(),
        )

    def _no_room(self, num_bytes: int) -> OverloadedError:
        return OverloadedError(
            f"states: no room for {num_bytes} more bytes: {self.num_bytes} of at most {self.capacity} are in "
            "use, and ending newer leases would not free enough; delete states, or wait until a lease ends",
            retry_after=self._seconds_to_wait(),
        )

    def _seconds_to_wait(self) -> float:
        seconds = [self.leases.seconds_left(lease) for lease in self.leases.newest_first()]
        return min(seconds, default=DEFAULT_TTL)


def name_taken(taken: NamedState, field: str) -> InvalidRequestError:
    """Return the error for a new name that is in use already, as the name of the state `taken`."""
    name = taken.plain_name
    return InvalidRequestError(field, name, f"a name that is free; {name!r} is the name of state {taken.id}")


def check_names(names: Sequence[str]) -> None:
    """Raise InvalidRequestError if `names`, the names of new states, are empty or not all different."""
    if not names or len(set(names)) < len(names):
        raise InvalidRequestError("names", list(names), "one or more names, all different")
