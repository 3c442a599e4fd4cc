"""The table of named states in memory. Its leases and quotas decide which states are removed if room is short.

An owner's lease lasts from its first state to its last, unless it expires before because no state was used. If a new
state does not fit, the newest leases of its namespace end, with all their states. A lease ends for it only if it is
newer than the lease of the new state's owner. If that would not free enough, no lease ends and the state is rejected.

The table records its changes. Whoever owns it writes them to files or to a store, or undoes them.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from rnn_engine.errors import InvalidRequestError, NotFoundError, OverloadedError
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import (
    NamedState,
    Retention,
    check_full_name,
    check_new_name,
    full_name,
    name_taken,
    parse_id,
    split_name,
)
from rnn_engine_states.named.leases import Lease, Leases, Quotas, ReferenceCounts
from rnn_engine_states.named.quota import DEFAULT_TTL, Quota


class NameIndex:
    """An index of named states by name, id, owner and namespace. Names are in the order in which they were added."""

    def __init__(self) -> None:
        self.by_name: dict[str, NamedState] = {}
        self.by_id: dict[uuid.UUID, NamedState] = {}
        self._groups: dict[tuple[str, str | None], dict[str, NamedState]] = {}  # by owner or namespace, then by name

    def owned_by(self, owner: str) -> list[NamedState]:
        return list(self._groups.get(("owner", owner), {}).values())

    def in_namespace(self, namespace: str) -> list[NamedState]:
        return list(self._groups.get(("namespace", namespace), {}).values())

    def put(self, entry: NamedState) -> None:
        """Add a named state to the index, replacing the one with the same name, if there is one."""
        if (before := self.by_name.get(entry.name)) is not None:
            self._unlink(before)
        self.by_name[entry.name] = entry
        self.by_id[entry.id] = entry
        for group in _groups_of(entry):
            self._groups.setdefault(group, {})[entry.name] = entry

    def remove(self, entry: NamedState) -> None:
        del self.by_name[entry.name]
        self._unlink(entry)

    def _unlink(self, entry: NamedState) -> None:
        del self.by_id[entry.id]
        for group in _groups_of(entry):
            del self._groups[group][entry.name]
            if not self._groups[group]:
                del self._groups[group]


def _groups_of(entry: NamedState) -> tuple[tuple[str, str | None], ...]:
    return ("owner", entry.owner), ("namespace", entry.namespace)


@dataclass(frozen=True, slots=True)
class StateListing:
    """The named states of all clients, or those that one client sees, with their size and limit in bytes."""

    entries: tuple[NamedState, ...]  # in the order in which the names were entered
    default: str | None  # the name of the default state
    num_bytes: int  # of all states, or of those of the client's namespace; copies share theirs
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


@dataclass(frozen=True, slots=True)
class Change:
    """A named state of one id before and after changes of a table. None stands for no state."""

    id: uuid.UUID
    before: NamedState | None
    after: NamedState | None
    lease: Lease | None = None  # that of the state before

    @property
    def persistent(self) -> bool:
        return any(entry is not None and entry.persistent for entry in (self.before, self.after))


DEFAULT_MAX_NAMES = 10_000
_NAMES_TOLD = 20
_MOST_TOMBSTONES = 1024  # names of deleted states that are remembered, with the reason for their deletion


class NamedStateTable:
    """The table of named states in memory, with their leases and quotas and the names that were deleted last.

    Names are full names. Every method that changes states or leases also records that. Not thread-safe.
    """

    def __init__(
        self,
        capacity: int,
        quota: Quota,
        clock: Callable[[], float],
        forget: Callable[[str], None],
        *,
        max_names: int = DEFAULT_MAX_NAMES,
        files: Container[uuid.UUID] | None = (),
        hold: Callable[[FrozenState], FrozenState] = lambda frozen: frozen,
    ) -> None:
        """Create a table without states, for at most `capacity` bytes of states and `max_names` names.

        `clock` returns seconds and never goes back. `forget` is called with the digest of a removed state if no name
        stands for a state with this digest any more. `files` has the ids of the files of persistent states. If it
        is None, a state can't be persistent: it needs a lease. `hold` returns the form in which a new state is kept.
        """
        self.capacity = capacity
        self._files = files
        self._max_names = max_names
        self.leases = Leases(clock)
        self.default: str | None = None  # a name of the table
        self._forget = forget
        self._hold = hold
        self._quotas = Quotas(quota, capacity)
        self._counts = ReferenceCounts()
        self._index = NameIndex()
        self._tombstones: dict[str, str] = {}  # name -> why its state was deleted; the oldest first
        # states before the recorded changes, and their leases
        self._before: dict[uuid.UUID, tuple[NamedState | None, Lease | None]] = {}
        self.last_version = 0

    # What the table has

    def entries(self) -> tuple[NamedState, ...]:
        """Return all named states in the order in which their names were entered."""
        return tuple(self._index.by_name.values())

    def find(self, name_or_id: str) -> NamedState | None:
        """Return the state whose id or, if no id matches, whose name is `name_or_id`. Return None if there is none."""
        key = parse_id(name_or_id)
        return (None if key is None else self.of_id(key)) or self.named(name_or_id)

    def named(self, name: str) -> NamedState | None:
        return self._index.by_name.get(name)

    def of_id(self, key: uuid.UUID) -> NamedState | None:
        return self._index.by_id.get(key)

    def missing(self, name_or_id: str, namespace: str = "") -> NotFoundError:
        """Return the error for a missing state, with the reason if known, and the names of the namespace."""
        reason = self._tombstones.get(full_name(namespace, name_or_id))
        fate = "does not exist" if reason is None else f"is gone: {reason}"
        known = sorted(entry.plain_name for entry in self._seen_in(namespace))
        more = len(known) - _NAMES_TOLD
        names = (", ".join(known[:_NAMES_TOLD]) or "none") + (f" and {more} more" if more > 0 else "")
        return NotFoundError(f"state {name_or_id!r} {fate}; there are: {names}")

    def shown(self, entry: NamedState) -> NamedState:
        """Return a copy with `expires_in`, the seconds until its lease expires, None without one."""
        lease = None if entry.owner is None else self.leases.find(entry.owner)
        return replace(entry, expires_in=None if lease is None else self.leases.seconds_left(lease))

    def listing(self, namespace: str | None) -> StateListing:
        """Return all named states, or the shared ones and those of a namespace, with the time until each expires."""
        if namespace is None:
            entries, used, capacity = self.entries(), self._counts.num_bytes, self.capacity
        else:
            entries = self._seen_in(namespace)
            used, capacity = self._quotas.of(namespace).num_bytes, self._quotas.num_bytes
        return StateListing(tuple(map(self.shown, entries)), self.default, used, capacity)

    def _seen_in(self, namespace: str) -> tuple[NamedState, ...]:
        own = self._index.in_namespace(namespace) if namespace else ()
        return (*self._index.in_namespace(""), *own)

    def usage(self, failed_writes: int) -> StateUsage:
        """Return the numbers of states, leases and bytes in the table, together with the caller's `failed_writes`."""
        entries = self.entries()
        persistent = sum(entry.persistent for entry in entries)
        num_bytes = self._counts.num_bytes
        return StateUsage(num_bytes, self.capacity, len(entries), persistent, len(self.leases), failed_writes)

    # How it is changed

    def end_expired(self) -> None:
        """Remove the states whose leases have expired, and these leases."""
        for lease in self.leases.end_expired():
            self._drop_all_of(lease.owner, f"its lease ended after {lease.ttl:g} seconds without use")

    def use(self, entry: NamedState) -> NamedState:
        """Renew the lease of the owner of `entry`, a state of the table, and return `entry`."""
        if entry.owner is not None:
            self.leases.renew(entry.owner)
        return entry

    def check_place(self, name: str, retention: Retention, num_bytes: int, num_names: int = 1) -> None:
        """Raise the error that `put` would raise, if any, for these bytes and new names. Changes nothing."""
        self._check_retention(name, retention)
        self.check_free(name, "name")
        check_new_name(split_name(name)[1], "name")
        self._check_quota(split_name(name)[0], num_bytes, num_names)
        self._check_room(num_bytes, retention.owner_of(name), num_names)

    def check_free_id(self, key: uuid.UUID) -> None:
        """Raise InvalidRequestError if a state has the id `key`, or is called so."""
        if self.find(str(key)) is not None:
            message = f"two states have the id {key}; give each its own"
            raise InvalidRequestError("state id", str(key), "an id that no other state has", message)

    def check_free(self, name: str, field: str) -> None:
        """Raise InvalidRequestError, which names `field`, if `name` is no valid full name or is in use."""
        check_full_name(name, field)
        if (taken := self.named(name)) is not None:
            raise name_taken(taken, field)

    def put(
        self, name: str, frozen: FrozenState, retention: Retention, source: str, form: StateForm, key: uuid.UUID | None
    ) -> NamedState:
        """Add a state to the table under a free name, and return it as a named state. See `StateStore.put`."""
        self.check_place(name, retention, frozen.num_bytes)
        if key is not None and self._files is not None and key in self._files:
            key = None  # of a state that was skipped at the start, whose file is kept
        return self.enter(self.make(name, self._renew(retention, name), self._hold(frozen), form, source, key))

    def fork(self, origin: NamedState, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        """Add copies of `origin`, which share its arrays, under `names`, all or none, and return them."""
        frozen = self._hold(self.use(origin).frozen)
        self._check_room(0, None, len(names))
        for namespace, num_names in Counter(split_name(name)[0] for name in names).items():
            self._check_quota(namespace, self._quotas.of(namespace).growth([frozen], []), num_names)
        for name in names:
            self.check_place(name, retention, 0)
        owners = [self._renew(retention, name) for name in names]
        source = f"copy of {origin.plain_name}"
        entries = [
            self.make(name, owner, frozen, origin.form, source) for name, owner in zip(names, owners, strict=True)
        ]
        return tuple(map(self.enter, entries))

    def move(self, old: NamedState, name: str, retention: Retention) -> NamedState:
        """Change the name or owner of `old`, a state of the table, and return the named state after the change."""
        self.use(old)
        if name == old.name:
            self._check_retention(name, retention)
        else:
            self.check_place(name, retention, 0, num_names=0)
            if (namespace := split_name(name)[0]) != old.namespace:
                self._check_quota(namespace, self._quotas.of(namespace).growth([old.frozen], []), 1)
        return self._swap(old, replace(old, version=self.next_version(), name=name, owner=self._renew(retention, name)))

    def set(self, old: NamedState, frozen: FrozenState, source: str) -> NamedState:
        """Replace the values of `old`, a state of the table, and return the named state after the change."""
        frozen = self._hold(frozen)
        self._check_quota(old.namespace, self._quotas.of(old.namespace).growth([frozen], [old.frozen]), 0)
        self.use(old)
        version, now = self.next_version(), time.time()
        return self._swap(old, replace(old, version=version, frozen=frozen, source=source, form="full", created=now))

    def make(
        self,
        name: str,
        owner: str | None,
        frozen: FrozenState,
        form: StateForm,
        source: str,
        key: uuid.UUID | None = None,
    ) -> NamedState:
        """Return a new named state without adding it to the table. Its id is `key`, or random if that is in use."""
        if key is None or self.find(str(key)) is not None:
            key = uuid.uuid4()
        return NamedState(key, self.next_version(), name, form, source, time.time(), owner, frozen)

    def next_version(self) -> int:
        """Return a version number for a named state, greater than all earlier ones."""
        self.last_version += 1
        return self.last_version

    def enter(self, entry: NamedState) -> NamedState:
        """Add a state under a free name; end newer leases for room. Raises OverloadedError if there is none."""
        self._check_names(1)
        self._make_room(entry.owner, entry.frozen)
        self._replace(None, entry)
        return entry

    def _swap(self, old: NamedState, new: NamedState) -> NamedState:
        self._make_room(new.owner, new.frozen, old.frozen)
        self._replace(old, new)
        return new

    def drop(self, entry: NamedState, reason: str) -> NamedState:
        """Remove a named state of the table, and return it. Errors for its name show `reason` from now on."""
        self._replace(entry, None, reason)
        return entry

    def restore(self, entry: NamedState) -> None:
        """Add a state of another table, which has checked room and leases, in place of one with its id."""
        self._replace(self.of_id(entry.id), entry)

    def _replace(self, old: NamedState | None, new: NamedState | None, reason: str = "") -> None:
        """Replace `old` by `new`, None for none, and record that; `reason` says why a name is gone."""
        before = old, None if old is None or old.owner is None else self.leases.find(old.owner)
        if old is not None and (new is None or new.name != old.name):
            self._index.remove(old)
            self._tombstones.pop(old.name, None)
            self._tombstones[old.name] = reason if new is None else f"it was renamed to {new.plain_name!r}"
            if len(self._tombstones) > _MOST_TOMBSTONES:
                del self._tombstones[next(iter(self._tombstones))]
        if new is not None:
            self._index.put(new)
            self._counts.add(new.frozen)
            self._quotas.add(new)
            self._tombstones.pop(new.name, None)
            self._before.setdefault(new.id, before)
        if old is None:
            return
        self._before.setdefault(old.id, before)
        if self.default == old.name:
            self.default = new.name if new is not None and new.persistent else None
        if old.owner is not None and not self._index.owned_by(old.owner):
            self.leases.end(old.owner)
        self._quotas.remove(old)
        if self._counts.remove(old.frozen):
            self._forget(old.frozen.digest)

    # The records of changes

    def changes(self) -> list[Change]:
        """Return the recorded changes, one for each id of a state, in the order of their first changes."""
        return [Change(key, before, self.of_id(key), lease) for key, (before, lease) in self._before.items()]

    def clear_records(self) -> None:
        """Forget the recorded changes, and which leases were renewed or ended."""
        self._before.clear()
        self.leases.touched.clear()

    def undo(self, changes: Sequence[Change], default: str | None, reason: str) -> None:
        """Undo `changes` if none of their states has been changed since. `default` was the default state before them.

        Errors for the name of a state that is removed again show `reason`.
        """
        if any(self.of_id(change.id) != change.after for change in changes):
            return
        if any(change.before is not None and self._is_taken(change.before) for change in changes):
            return
        for change in reversed(changes):
            self._replace(change.after, change.before, reason)
            if (lease := change.lease) is not None and self.leases.find(lease.owner) is None:
                self.leases.restore(lease.owner, lease.number, lease.ttl, lease.expires - lease.ttl)
        self.default = default

    def _is_taken(self, entry: NamedState) -> bool:
        return (held := self.named(entry.name)) is not None and held.id != entry.id

    # Room for states

    def _check_retention(self, name: str, retention: Retention) -> None:
        """Raise InvalidRequestError if a state called `name` can't be kept in the way that `retention` describes."""
        retention.check()
        self._quotas.check_ttl(name, retention.ttl)
        if retention.persistent and self._files is None:
            raise InvalidRequestError(
                "persistent", True, "false, since the server has no folder for persistent states (--state-folder)"
            )

    def _renew(self, retention: Retention, name: str) -> str | None:
        """Renew the owner's lease that keeps a state called `name`, or create it if there is none.

        `retention` has the owner. Return the lease's owner, or None for a persistent state, which has no lease.
        """
        owner = retention.owner_of(name)
        if owner is not None:
            self.leases.renew(owner, retention.ttl)
        return owner

    def _drop_all_of(self, owner: str, reason: str) -> None:
        for entry in self._index.owned_by(owner):
            self.drop(entry, reason)

    def _check_quota(self, namespace: str, num_bytes: int, num_names: int) -> None:
        self._quotas.check_room(namespace, num_bytes, num_names, self._seconds_to_wait())

    def _check_names(self, num_names: int) -> None:
        used = len(self._index.by_name)
        if used + num_names > self._max_names:
            raise OverloadedError(
                f"states: no room for {num_names} more names: {used} of at most {self._max_names} are "
                "in use; delete states, or wait until a lease ends",
                retry_after=self._seconds_to_wait(),
            )

    def _check_room(self, num_bytes: int, owner: str | None, num_names: int = 1) -> None:
        """Raise OverloadedError if the table has no room for `num_names` more names and `num_bytes` more bytes.

        Counts the bytes of leases that would end to make room for a state of `owner`.
        """
        self._check_names(num_names)
        self._find_victims(owner, num_bytes, lambda going: num_bytes + self._counts.growth([], going))

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
        used = self._counts.num_bytes
        victims: list[Lease] = []
        going: list[FrozenState] = []
        for lease in self._newer_than(owner):
            if used + growth(going) <= self.capacity:
                break
            victims.append(lease)
            going += [entry.frozen for entry in self._index.owned_by(lease.owner)]
        if used + growth(going) > self.capacity:
            raise OverloadedError(
                f"states: no room for {num_bytes} more bytes: {used} of at most {self.capacity} are in use, and ending "
                "newer leases would not free enough; delete states, or wait until a lease ends",
                retry_after=self._seconds_to_wait(),
            )
        return victims

    def _newer_than(self, owner: str | None) -> list[Lease]:
        """Return the leases newer than the owner's, in its namespace, the newest first; none without one."""
        own = None if owner is None else self.leases.find(owner)
        if own is None:
            return []
        namespace = split_name(own.owner)[0]
        newer = (lease for lease in self.leases.newest_first() if lease.number > own.number)
        return [lease for lease in newer if split_name(lease.owner)[0] == namespace]

    def _seconds_to_wait(self) -> float:
        seconds = [self.leases.seconds_left(lease) for lease in self.leases.newest_first()]
        return min(seconds, default=DEFAULT_TTL)
