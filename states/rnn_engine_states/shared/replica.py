"""A server's copy of the named states in a shared store. It records local changes until they are sent to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager

from rnn_engine.errors import InvalidRequestError, StorageError
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState, check_full_name
from rnn_engine_states.named.local import LocalTable
from rnn_engine_states.named.quota import Quota
from rnn_engine_states.named.table import NamedStateTable
from rnn_engine_states.shared.entries import (
    Change,
    StoredEntry,
    StoredLease,
    UnreadState,
    ValueKey,
    key_of,
)
from rnn_engine_states.shared.names import NamesRead, Pending, Revision


class StoreReplica:
    """A server's copy of a shared store's named states as last read, together with the operator's own states.

    For one event loop. Each server has its own operator's states. They are read-only, and hide states in the store with
    the same names.
    """

    def __init__(
        self,
        own: LocalTable,
        capacity: int,
        quota: Quota,
        forget: Callable[[str], None],
        note_unreadable: Callable[[str, object], None],
    ) -> None:
        """Make a copy that has only the operator's states, which are in `own`, until others are read from the store.

        `capacity` and `quota` bound the table. `forget` is called with the digest of a removed state if no
        name stands for a state with this digest any more. `note_unreadable` is called with a description of a text that
        can't be parsed, and the reason. It is called once for each such text while that stays in the store.
        """
        self._own = own
        self._note_unreadable = note_unreadable
        self._unreadable: set[str] = set()  # texts of the last complete read, and of changes since
        self._capacity, self._quota, self._forget = capacity, quota, forget
        self._shared: dict[ValueKey, UnreadState] = {}
        self._now = 0.0  # by the store's clock, when it was read last
        self.revision = Revision()
        self.table = self._make_table()

    @property
    def is_known(self) -> bool:
        """Whether the server's copy of the named states has a known revision, that of the last read or commit."""
        return self.revision.read_at > 0

    def lose_track(self) -> None:
        """Forget the copy's revision, as the copy may differ from the store. The next read then fetches all names."""
        self.revision = Revision()

    def take_in(self, read: NamesRead) -> None:
        """Apply what was read, except for texts that can't be parsed, and end expired leases."""
        self.revision = Revision()  # until all of it is applied
        before, noted = set[str](), self._unreadable
        if read.complete:
            self._unreadable = set()
            before = {frozen.digest for frozen in self._shared.values()}
            self.table = self._make_table()
        table, self._now = self.table, read.revision.read_at
        for change in read.changes:
            self._replay(change, noted)
        for owner, used in read.used.items():
            if (lease := table.leases.find(owner)) is not None:
                table.leases.restore(owner, lease.number, lease.ttl, min(used, self._now))
        table.last_version = max(table.last_version, read.last_version)
        self.revision = read.revision
        self._prune()
        for digest in before - {frozen.digest for frozen in self._shared.values()}:
            self._forget(digest)
        table.clear_records()
        table.end_expired()
        if read.complete:
            self._renew_lost_leases(read.used)

    def _share(self, frozen: FrozenState) -> UnreadState:
        """Return the description of a state without its arrays, the same object for all equal ones."""
        key = key_of(frozen)
        if key not in self._shared:
            self._shared[key] = frozen if isinstance(frozen, UnreadState) else UnreadState.of(frozen)
        return self._shared[key]

    def pending(self) -> Pending | None:
        """Return the changes of the server's copy since it last matched the store, or None if there are none."""
        table = self.table
        changes, touched = table.changes(), sorted(table.leases.touched)
        if not changes and not touched:
            return None
        leases = {owner: lease for owner in touched if (lease := table.leases.find(owner)) is not None}
        changed = [change.after for change in changes if change.after is not None]
        change = Change(
            entries={str(entry.id): StoredEntry.of(entry).encode() for entry in changed},
            removed=tuple(change.id for change in changes if change.after is None),
            leases={owner: StoredLease(number=one.number, ttl=one.ttl).encode() for owner, one in leases.items()},
            ended=tuple(owner for owner in touched if owner not in leases),
        )
        held = {key_of(entry.frozen) for entry in table.entries() if isinstance(entry.frozen, UnreadState)}
        needed = {key_of(entry.frozen) for entry in changed}
        return Pending(change, table.last_version, sorted(needed), sorted(set(self._shared) - held))

    def note_committed(self, revision: Revision) -> None:
        """Forget the changes that were to be sent, because the store has them now as `revision`."""
        self.revision = revision
        self.table.clear_records()
        self._prune()

    def _make_table(self) -> NamedStateTable:
        """Return a table with the operator's states, whose clock advances only when the store is read."""
        table = NamedStateTable(self._capacity, self._quota, lambda: self._now, self._forget, hold=self._share)
        with self._own.locked() as own:
            for entry in own.entries():
                table.last_version = max(table.last_version, entry.version)
                table.restore(entry)
            table.default = own.default
        return table

    def _replay(self, change: Change, noted: Set[str]) -> None:
        """Apply a change, and report texts that can't be parsed unless they are among `noted`."""
        table = self.table
        for removed in change.removed:
            held = table.of_id(removed)
            if held is not None and not held.read_only:
                table.drop(held, "it was removed")
        entries: list[NamedState] = []
        for key, text in change.entries.items():
            with self._noting(text, "a named state", noted):
                entry = StoredEntry.decode(text, "a named state").named(self._share)
                if str(entry.id) != key:
                    raise StorageError(f"the entry of id {key!r} has the id {entry.id}")
                entries.append(entry)
        for entry in sorted(entries, key=lambda entry: entry.version):
            with self._noting(str(entry.id), "a named state", noted):
                self._restore(entry)
        for owner, text in change.leases.items():
            with self._noting(text, "a lease", noted):
                lease = StoredLease.decode(text, "a lease")
                check_full_name(owner, "owner")
                table.leases.restore(owner, lease.number, lease.ttl, self._now)
        for owner in change.ended:
            table.leases.end(owner)

    def _restore(self, entry: NamedState) -> None:
        """Add a state of the store to the copy, unless the operator has a state with its name or id."""
        with self._own.locked() as own:
            if own.find(str(entry.id)) is not None or own.find(entry.name) is not None:
                return
        held = self.table.named(entry.name)
        if held is not None and held.id != entry.id:
            raise StorageError(f"{entry.id} and {held.id} have the same name")
        self.table.restore(entry)
        self.table.last_version = max(self.table.last_version, entry.version)

    def _renew_lost_leases(self, used: Mapping[str, float]) -> None:
        """Renew the leases that the store lacks, or whose last use it lacks, for owners with states in the copy.

        `used` has the time of each lease's last use, by owner.
        """
        table = self.table
        for owner in {entry.owner for entry in table.entries()}:
            if owner is not None and (owner not in used or table.leases.find(owner) is None):
                table.leases.renew(owner)

    @contextmanager
    def _noting(self, text: str, what: str, noted: Set[str]) -> Iterator[None]:
        """Suppress the error of an invalid text, `what`, in a block, and report it unless it is in `noted`."""
        try:
            yield
        except (StorageError, InvalidRequestError) as error:
            self._unreadable.add(text)
            if text not in noted:
                self._note_unreadable(what, error)

    def _prune(self) -> None:
        frozen = (entry.frozen for entry in self.table.entries())
        self._shared = {key_of(one): one for one in frozen if isinstance(one, UnreadState)}
