"""The store of named states that clients of an engine use: its interface, and a store in memory and a folder.

A state either has an owner, whose lease ends if none of the owner's states is used, or is persistent: then it stays
until it is deleted, and is kept in a folder. A state that the operator loads from a file at every start is read-only,
since the next start would undo a change.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from rnn_engine.errors import InvalidRequestError, NotFoundError, OverloadedError, StorageError
from states.files.exchange import StateFiles
from states.files.reading import LoadedState, StateForm
from states.frozen import FrozenState
from states.named.entry import NamedState, OwnerLease, Quota, Retention, check_changeable, check_new_name
from states.named.persistence import SavedStates
from states.named.table import NamedStateTable, StateListing, StateUsage

DEFAULT_CAPACITY = 512 << 20
DEFAULT_MAX_NAMES = 10_000
_QUOTA = Quota()
_log = logging.getLogger(__name__)


class StateStore(Protocol):
    """Named states, shared by all who use an engine. For one event loop, which no method blocks.

    The states it returns are immutable and stay usable after they are deleted. Using a state renews its owner's lease.
    The arrays may be read only of states that `get`, `default`, `put` or `compare_and_set` returned.
    """

    async def get(self, name_or_id: str) -> NamedState:
        """Return the state of this id or, else, of this name, and renew its owner's lease.

        Raises NotFoundError, which lists the shared names and says what became of this one.
        """
        ...

    async def find(self, name_or_id: str) -> NamedState | None:
        """Return the state of this id or, else, of this name, if there is one. Its owner's lease is not renewed."""
        ...

    async def missing(self, name_or_id: str, namespace: str) -> NotFoundError:
        """Return the error for a name that is neither in a namespace nor shared. It lists names of these two only."""
        ...

    async def list(self, namespace: str | None = None) -> StateListing:
        """Return all states, or those of a namespace. Leases are not renewed."""
        ...

    def usage(self) -> StateUsage:
        """Return how many states there are, and how much room they take."""
        ...

    async def default(self) -> NamedState | None:
        """Return the state from which requests start if they name none; None stands for the fill values."""
        ...

    async def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        """Raise what `put` would raise at this moment for a state of this size. Reserves nothing."""
        ...

    async def put(
        self,
        name: str,
        frozen: FrozenState,
        retention: Retention,
        *,
        source: str,
        form: StateForm = "full",
        key: uuid.UUID | None = None,
    ) -> NamedState:
        """Keep a state under a free name. It gets the id `key` if that is free.

        Raises InvalidRequestError if the name is taken or not allowed, OverloadedError if there is no room, and
        StorageError if a persistent state can't be written. After an error nothing has changed.
        """
        ...

    async def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        """Replace the values of a state if it still has the version of `old`. Name and id stay.

        Raises NotFoundError if the state was deleted or changed, InvalidRequestError if it is read-only,
        OverloadedError if there is no room, and StorageError if a persistent state can't be written.
        """
        ...

    async def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        """Keep a state under more names, all of them or none. Raises what `get` and `put` raise."""
        ...

    async def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        """Give a state another name, another owner, or both, in one step.

        Raises what `get` and `put` raise, and InvalidRequestError if the state is read-only.
        """
        ...

    async def delete(self, name_or_id: str) -> NamedState:
        """Delete a state. Sequences that run from it go on.

        Raises NotFoundError, InvalidRequestError if it is read-only, and StorageError if its file can't be deleted.
        After an error nothing has changed.
        """
        ...

    async def leases(self, namespace: str | None = None) -> tuple[OwnerLease, ...]:
        """Return all leases, or those in a namespace, the newest first. They are not renewed."""
        ...

    async def end_lease(self, owner: str) -> OwnerLease:
        """Delete all states of an owner; sequences that run from them go on.

        Raises NotFoundError if the owner has no lease.
        """
        ...

    def lock(self, key: uuid.UUID) -> AbstractAsyncContextManager[None]:
        """Hold the lock of a state's id while the block runs, so that requests that run the model to change a state
        take turns.

        The lock covers one engine only; `compare_and_set` detects changes by others.
        """
        ...


class KeyedLocks:
    """A lock for each key that is in use. Tasks get a lock in the order in which they asked for it."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of `key` while the block runs."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if self._users[key] == 0:
                del self._users[key], self._locks[key]

    def __len__(self) -> int:
        return len(self._users)


class LocalStateStore:
    """A `StateStore` in this process: a table in memory, and a folder for persistent states.

    Files are written on other threads. A change that can't be written is undone. `add`, `add_file`, `load_saved` and
    `set_default` are for the start; they may block.
    """

    def __init__(
        self,
        files: StateFiles,
        *,
        capacity: int = DEFAULT_CAPACITY,
        max_names: int = DEFAULT_MAX_NAMES,
        saved: SavedStates | None = None,
        quota: Quota = _QUOTA,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`capacity` bounds the bytes of all states together, `max_names` their names, `quota` both for a namespace.

        `saved` keeps the files of persistent states; if it is None, a state can't be made persistent.
        """
        self.files = files
        self._saved = saved
        self._failed_writes = 0
        self._listeners: list[Callable[[str], None]] = []
        self._table = NamedStateTable(
            capacity, max_names, clock, partial(_report, self._listeners), quota, keeps_persistent=saved is not None
        )
        self._lock = threading.RLock()
        self._disk_lock = threading.Lock()  # always taken before `_lock`
        self._key_locks = KeyedLocks()

    def on_forgotten(self, forget: Callable[[str], None]) -> None:
        """Call `forget` with the digest of a state when no name stands for a state of these values any more.

        It may be called on any thread, and must not block.
        """
        self._listeners.append(forget)

    def add_file(self, path: Path, name: str | None = None, key: uuid.UUID | None = None) -> NamedState:
        """Read a state file of the operator, and enter its state.

        `name` defaults to the name in the file, then to the path's stem; `key`, the state's id, to the id in the file.
        If the file says that its state is the default, it becomes the default.
        """
        if name is not None:
            check_new_name(name, "state name")
        with self.locked() as table:
            if key is not None and table.find(str(key)) is not None:
                raise InvalidRequestError("state id", str(key), "an id that no other state has")
        loaded = self.files.read(path)
        loaded = replace(loaded, id=key or loaded.id)
        entry = self.add(loaded, name or loaded.name or path.stem, path.name)
        if loaded.default:
            self.set_default(entry.name)
        return entry

    def add(self, loaded: LoadedState, name: str, source: str) -> NamedState:
        """Enter a state that the operator loads at every start: it is read-only, and not written to the folder."""
        frozen = self.files.freeze(loaded, source)
        with self.locked() as table:
            table.check_free(name, "state name")
            named = table.make(name, None, frozen, loaded.form, source, loaded.id)
            entry = replace(named, read_only=True)
            table.enter(entry)
        return entry

    def load_saved(self) -> None:
        """Enter the persistent states of earlier runs. A state that has no room any more is logged and skipped."""
        for found in () if self._saved is None else self._saved.load():
            try:
                with self.locked() as table:
                    version = table.next_version()
                    entry = NamedState(
                        found.id, version, found.name, "full", found.file, found.created, None, found.frozen
                    )
                    table.check_free(found.name, "state name")
                    table.enter(entry)
            except (InvalidRequestError, OverloadedError) as error:
                _log.warning("a persistent state is skipped: %s: %s", found.file, error)

    def set_default(self, name: str | None) -> None:
        """Make a persistent state the default. Raises NotFoundError, or InvalidRequestError for a leased one."""
        with self.locked() as table:
            entry = None if name is None else table.get(name)
            if entry is not None and not entry.persistent:
                raise InvalidRequestError("default state", name, "a persistent state")
            table.default = None if entry is None else entry.name

    async def get(self, name_or_id: str) -> NamedState:
        with self.locked() as table:
            return table.shown(table.use(name_or_id))

    async def find(self, name_or_id: str) -> NamedState | None:
        with self.locked() as table:
            found = table.find(name_or_id)
            return None if found is None else table.shown(found)

    async def missing(self, name_or_id: str, namespace: str) -> NotFoundError:
        with self.locked() as table:
            return table.missing(name_or_id, namespace)

    async def list(self, namespace: str | None = None) -> StateListing:
        with self.locked() as table:
            return table.listing(namespace)

    def usage(self) -> StateUsage:
        with self.locked() as table:
            return table.usage(self._failed_writes)

    async def default(self) -> NamedState | None:
        with self.locked() as table:
            return None if table.default is None else table.named(table.default)

    async def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        with self.locked() as table:
            table.check_place(name, retention, num_bytes)

    async def put(
        self,
        name: str,
        frozen: FrozenState,
        retention: Retention,
        *,
        source: str,
        form: StateForm = "full",
        key: uuid.UUID | None = None,
    ) -> NamedState:
        with self.locked() as table:
            entry = table.put(name, frozen, retention, source=source, form=form, key=key)
        if entry.persistent:
            await asyncio.to_thread(self._write, [entry], partial(self._drop_unwritten, [entry]))
        return self._shown(entry)

    async def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        with self.locked() as table:
            held, new = table.compare_and_set(old, frozen, source)
        if new.persistent:
            await asyncio.to_thread(self._write, [new], partial(table.swap, new, held))
        return self._shown(new)

    async def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        with self.locked() as table:
            entries = table.fork(name_or_id, names, retention)
        if retention.persistent:
            await asyncio.to_thread(self._write, entries, partial(self._drop_unwritten, entries))
        return tuple(map(self._shown, entries))

    async def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        with self.locked() as table:
            old, new = table.move(name_or_id, name, retention)
        if old.persistent or new.persistent:
            await asyncio.to_thread(self._write, [new], partial(table.swap, new, old))
        return self._shown(new)

    async def delete(self, name_or_id: str) -> NamedState:
        while True:
            with self.locked() as table:
                entry = table.get(name_or_id)
                check_changeable(entry, "state")
                if not entry.persistent:
                    return table.delete(name_or_id)
            if await asyncio.to_thread(self._delete_saved, entry):
                return entry
            # the state was changed meanwhile, and that change writes its file again: try once more

    async def leases(self, namespace: str | None = None) -> tuple[OwnerLease, ...]:
        with self.locked() as table:
            return tuple(table.leases_of(namespace))

    async def end_lease(self, owner: str) -> OwnerLease:
        with self.locked() as table:
            return table.end_lease(owner)

    def lock(self, key: uuid.UUID) -> AbstractAsyncContextManager[None]:
        return self._key_locks.hold(str(key))

    @contextmanager
    def locked(self) -> Iterator[NamedStateTable]:
        """Lock the table and drop expired leases with their states. For any thread; the block must not await."""
        with self._lock:
            self._table.end_expired()
            yield self._table

    def report_forgotten(self, digest: str) -> None:
        """Report to the callbacks of `on_forgotten` that no name stands for a state of these values any more."""
        _report(self._listeners, digest)

    def _shown(self, entry: NamedState) -> NamedState:
        with self.locked() as table:
            return table.shown(entry)

    def _write(self, entries: Sequence[NamedState], undo: Callable[[], object]) -> None:
        """Persist the change; roll it back if writing fails, unless a later change has replaced it."""
        try:
            for entry in entries:
                self._sync(entry.id)
        except Exception as error:
            self._note_failure(error)
            with self._lock:
                if all(self._table.holds(entry) for entry in entries):
                    undo()
            for entry in entries:
                with suppress(Exception):
                    self._sync(entry.id)
            raise

    def _drop_unwritten(self, entries: Sequence[NamedState]) -> None:
        for entry in entries:
            self._table.drop(entry, "its file could not be written")

    def _delete_saved(self, entry: NamedState) -> bool:
        """Delete a persistent state: first its file, so that a deleted name does not come back at the next start.

        Returns False if the state was changed meanwhile.
        """
        with self._disk_lock:
            if self._saved is not None:
                try:
                    self._saved.delete(entry.id)
                except StorageError as error:
                    self._note_failure(error)
                    raise
            with self.locked() as table:
                if not table.holds(entry):
                    return False
                table.delete(str(entry.id))
                return True

    def _note_failure(self, error: Exception) -> None:
        _log.warning("%s", error)
        with self._lock:
            self._failed_writes += 1

    def _sync(self, key: uuid.UUID) -> None:
        """Write the file of the state of this id, or delete the file if there is no such persistent state."""
        if self._saved is None:
            return
        with self._disk_lock:
            with self._lock:
                entry = self._table.of_id(key)
            if entry is not None and entry.persistent:
                self._saved.save(key, entry.name, entry.frozen)
            else:
                self._saved.delete(key)


def _report(listeners: Sequence[Callable[[str], None]], digest: str) -> None:
    for forget in listeners:
        forget(digest)
