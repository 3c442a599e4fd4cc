"""`SharedTable`, the named states that several servers share. Each server sees the others' changes at once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TypeVar
from weakref import WeakValueDictionary

from rnn_engine.errors import InvalidRequestError, NotFoundError, RnnEngineError, StorageError, UnavailableError
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState, check_full_name
from rnn_engine_states.named.quota import Quota
from rnn_engine_states.named.store import LocalTable
from rnn_engine_states.named.table import NamedStateTable, StateUsage
from rnn_engine_states.shared.client import StoreClient
from rnn_engine_states.shared.names import (
    Change,
    Commit,
    NamesRead,
    Pending,
    Revision,
    SharedNames,
    SharedValues,
    StoredEntry,
    StoredLease,
    UnreadState,
    ValueKey,
    key_of,
)

T = TypeVar("T")

MOST_TRIES = 20  # of an operation that changes by others interrupt


class SharedTable:
    """Access to a table of named states in a shared store, which other servers use, too: a `TableAccess`.

    Every call sees the changes that others have made before it. A change is tried again if another server has made one
    meanwhile. Each server has its own operator's states, which need no store. All other operations raise
    UnavailableError while the store does not answer.
    """

    def __init__(
        self,
        own: LocalTable,
        client: StoreClient,
        model: str,
        *,
        capacity: int,
        quota: Quota,
        forget: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Share the named states of the model with the fingerprint `model`. `own` has the operator's states.

        `capacity` bounds the bytes of all states, and `quota` those of one namespace. Every server should have the same
        bounds. `forget` is called with the digest of a removed state if no name stands for
        a state with this digest any more.
        """
        self.locks = WeakValueDictionary[uuid.UUID, asyncio.Lock]()
        self._own = own
        self._client = client
        self._names = SharedNames(client, model)
        self._values = SharedValues(client, own.files, model, capacity)
        self._replica = StoreReplica(own, capacity, quota, forget, client.note_unreadable)
        self._turn = asyncio.Lock()  # held from a read of the names until the change that follows is made
        self._begun = 0  # reads of the names
        self._last_read = 0  # the number, among those begun, of the last one that succeeded
        self._failed_writes = 0

    async def ask(self, question: Callable[[NamedStateTable], T], first: str = "") -> T:
        with self._own.locked() as own:
            if own.find(first) is not None:
                return question(own)
        async with self._names_now() as table:
            return question(table)

    async def use(self, require: Callable[[NamedStateTable], NamedState], first: str) -> NamedState:
        with self._own.locked() as own:
            if own.find(first) is not None:
                return require(own)
        without: NamedState | None = None
        for _ in range(MOST_TRIES):
            async with self._names_now() as table:
                entry = require(table)
                if entry.owner is not None:
                    lasts = await self._client.call(self._names.use(entry.owner))
                    lease = table.leases.find(entry.owner)
                    if not lasts or lease is None:
                        self._replica.lose_track()  # the store has another lease than the copy
                        continue
                    entry = replace(entry, expires_in=lease.ttl)
            if not isinstance(entry.frozen, UnreadState):
                return entry
            if (frozen := await self._values.get(entry.frozen)) is not None:
                return replace(entry, frozen=frozen)
            if entry == without:  # else it may have been changed meanwhile
                raise _without_values(entry.plain_name)
            without = entry
        raise _busy()

    async def change(
        self, action: Callable[[NamedStateTable], T], values: FrozenState | None = None, name: str = ""
    ) -> T:
        if values is not None:
            await self._put_values(values)
        for _ in range(MOST_TRIES):
            async with self._names_now() as table:
                try:
                    result = action(table)
                except RnnEngineError:
                    await self._undo()
                    raise
                except BaseException:
                    self._replica.lose_track()
                    raise
                outcome, needed = await self._commit()
            if outcome is Commit.DONE:
                return result
            if outcome is Commit.MISSING:
                await self._put_again(needed, values, name)
        raise _busy()

    async def default(self) -> NamedState | None:
        return await self._own.default()

    def usage(self) -> StateUsage:
        """Return the numbers of states, leases and bytes at the last read of the names from the store."""
        return self._replica.table.usage(self._failed_writes)

    async def _put_values(self, frozen: FrozenState) -> None:
        try:
            await self._values.put(frozen)
        except StorageError:
            self._failed_writes += 1
            raise

    async def _put_again(self, needed: Sequence[ValueKey], values: FrozenState | None, name: str) -> None:
        """Write needed arrays that the store has lost again. Raises NotFoundError for `name` if nobody has them."""
        with self._own.locked() as own:
            operators = {key_of(entry.frozen): entry.frozen for entry in own.entries()}
        for key in needed:
            found = values or self._values.held(key) or operators.get(key)
            if found is None:
                raise _without_values(name)
            await self._put_values(found)

    @asynccontextmanager
    async def _names_now(self) -> AsyncIterator[NamedStateTable]:
        """Yield the table of named states for a `with` block, read from the store no earlier than the call.

        No other task changes the table during the block. Tasks that wait for each other share a read, so a slow store
        is asked once for all of them.
        """
        begun = self._begun
        async with self._turn:
            if self._last_read <= begun or not self._replica.is_known:
                await self._read()
            yield self._replica.table

    async def _read(self) -> None:
        self._begun += 1
        self._replica.take_in(await self._client.call(self._names.read(self._replica.revision)))
        await self._commit()
        self._last_read = self._begun

    async def _undo(self) -> None:
        """Discard a change that failed before it was sent, or send renewals of leases if it was only that."""
        if self._replica.table.changes():
            self._replica.lose_track()
        else:
            await self._commit()

    async def _commit(self) -> tuple[Commit, Sequence[ValueKey]]:
        """Send local changes of the named states to the store, if there are any.

        Return the outcome, and the keys of the arrays that the changed states need.
        """
        known = self._replica.revision
        self._replica.lose_track()  # until the outcome of the change is known
        pending = self._replica.pending()
        if pending is None:
            self._replica.revision = known
            return Commit.DONE, ()
        outcome, revision = await self._client.call(self._names.change(known, pending))
        if outcome is Commit.DONE:
            self._replica.note_committed(revision)
        return outcome, pending.needed


def _without_values(name: str) -> NotFoundError:
    return NotFoundError(f"state {name!r} is gone: its values in the store are missing or damaged")


def _busy() -> UnavailableError:
    return UnavailableError("other servers change the states in the store too often; try again", 1.0)


# A server's copy of the named states. It records local changes until they are sent to the store.


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
