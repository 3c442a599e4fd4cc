"""`StateStore`, the interface to named states, and `LocalStateStore`, which stores them in memory and in a folder.

A state is kept by its owner's lease, which expires if none of the owner's states is used. A persistent state is kept
until it is deleted, and is saved in a folder. A state that the operator loads at every start is read-only, since
loading its file again would undo every change.
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
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.reading import LoadedState, StateForm
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState, OwnerLease, Retention, check_changeable, check_new_name
from rnn_engine_states.named.persistence import SavedStates
from rnn_engine_states.named.quota import DEFAULT_CAPACITY, Quota
from rnn_engine_states.named.table import NamedStateTable, StateListing, StateUsage

DEFAULT_MAX_NAMES = 10_000
_QUOTA = Quota()
_log = logging.getLogger(__name__)


class StateStore(Protocol):
    """The interface to the named states of a model. Its methods must be called on one event loop, and do not block it.

    The returned objects are immutable, and stay valid when the state is deleted. Using a state renews its owner's
    lease. Only the states that `get`, `default`, `put` and `compare_and_set` return are sure to have their arrays in
    memory.
    """

    async def get(self, name_or_id: str) -> NamedState:
        """Return the state whose id or, if no id matches, whose name is `name_or_id`, and renew its owner's lease.

        Raises NotFoundError if there is none. The error lists the existing names, and says why the state was deleted.
        """
        ...

    async def find(self, name_or_id: str) -> NamedState | None:
        """Return the state whose id or, if no id matches, whose name is `name_or_id`; None if there is none.

        Renews no lease.
        """
        ...

    async def missing(self, name_or_id: str, namespace: str) -> NotFoundError:
        """Return the error for a client of `namespace` that asks for a state that does not exist.

        The error lists no names of other namespaces.
        """
        ...

    async def list(self, namespace: str | None = None) -> StateListing:
        """Return all named states, or those of one namespace. Renews no lease."""
        ...

    def usage(self) -> StateUsage:
        """Return how many named states, leases and bytes are stored, with the limits on them."""
        ...

    async def default(self) -> NamedState | None:
        """Return the default initial state of requests, or None if they start from the state before any token."""
        ...

    async def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        """Raise the error that `put` would raise for a state of `num_bytes` bytes under `name`, if there is one.

        Reserves no room.
        """
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
        """Add a state under a free name, and return it. Its id is `key`, unless `key` is None or in use.

        Raises InvalidRequestError if the name is invalid or in use, OverloadedError if there is no room, and
        StorageError if a persistent state can't be written. After an error, nothing has changed.
        """
        ...

    async def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        """Replace the values of the named state `old` if it has not changed since then. Its name and id stay the same.

        Raises NotFoundError if the state was deleted or changed, InvalidRequestError if it is read-only,
        OverloadedError if there is no room, and StorageError if it can't be written.
        """
        ...

    async def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        """Add copies of a state under `names`, either all of them or none, and return them.

        Raises the errors of `get` and `put`.
        """
        ...

    async def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        """Change a state's name or owner, or both at once, and return the changed state.

        Raises the errors of `get` and `put`, and InvalidRequestError if the state is read-only.
        """
        ...

    async def delete(self, name_or_id: str) -> NamedState:
        """Delete a state, and return it. Sequences that started from it continue.

        Raises NotFoundError if there is no such state, InvalidRequestError if it is read-only, and StorageError if its
        file can't be deleted. After an error, nothing has changed.
        """
        ...

    async def leases(self, namespace: str | None = None) -> tuple[OwnerLease, ...]:
        """Return descriptions of all leases, or of those in one namespace, the newest first. Renews no lease."""
        ...

    async def end_lease(self, owner: str) -> OwnerLease:
        """End an owner's lease and delete its states. Sequences that started from them continue.

        Raises NotFoundError if the owner has no lease.
        """
        ...

    def lock(self, key: uuid.UUID) -> AbstractAsyncContextManager[None]:
        """Return an async context manager that holds the lock of the state with id `key`.

        Tasks that run the model to change the state take turns by it. The lock is for this engine only;
        `compare_and_set` detects changes by other engines.
        """
        ...


class KeyedLocks:
    """asyncio locks, one for each key in use. Tasks get a key's lock in the order in which they asked for it."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of `key` while a `with` block runs."""
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
    """A `StateStore` within this process: a table in memory, and a folder of files for persistent states.

    Files are written on other threads. If a write fails, the change is rolled back. `add`, `add_file`, `load_saved` and
    `set_default` are called only at the start, and block while they read files.
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
        """Store at most `capacity` bytes of states and `max_names` names, with `quota` as the limits of each namespace.

        `saved` is the folder of persistent states; None allows no persistent states.
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
        """Register `forget`, which is called with a state's digest once no name stands for a state with this digest.

        It is called on any thread, and must not block.
        """
        self._listeners.append(forget)

    def add_file(self, path: Path, name: str | None = None, key: uuid.UUID | None = None) -> NamedState:
        """Add a read-only state from a file that the operator provides, and return it.

        `name` defaults to the name in the file, else to the path's stem. `key`, the state's id, defaults to the id in
        the file. If the file declares its state as the default, the state becomes the default.
        """
        if name is not None:
            check_new_name(name, "state name")
        with self.locked() as table:
            if key is not None and table.find(str(key)) is not None:
                message = f"two states have the id {key}; give each its own"
                raise InvalidRequestError("state id", str(key), "an id that no other state has", message)
        loaded = self.files.read(path)
        loaded = replace(loaded, id=key or loaded.id)
        name = name or loaded.name
        if name is None:
            name = path.stem
            check_new_name(name, "state name")
        entry = self.add(loaded, name, path.name)
        if loaded.default:
            self.set_default(entry.name)
        return entry

    def add(self, loaded: LoadedState, name: str, source: str) -> NamedState:
        """Add a read-only state that the operator loads at every start, and return it.

        The folder gets no file of it.
        """
        frozen = self.files.freeze(loaded, source)
        with self.locked() as table:
            table.check_free(name, "state name")
            named = table.make(name, None, frozen, loaded.form, source, loaded.id)
            entry = replace(named, read_only=True)
            table.enter(entry)
        return entry

    def load_saved(self) -> None:
        """Add the persistent states of earlier runs, which are files in the folder.

        If there is no room for one, or its name is in use, it is skipped with a warning in the log.
        """
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
        """Make a persistent state the default. `name` may also be an id; None removes the default.

        Raises NotFoundError if there is no such state, and InvalidRequestError if it is not persistent.
        """
        with self.locked() as table:
            entry = None if name is None else table.get(name)
            if entry is not None and not entry.persistent:
                message = f"the default state has to be persistent, and {name!r} is not"
                raise InvalidRequestError("default state", name, "a persistent state", message)
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
            # A change between the two steps has written the file anew, so the deletion begins again.

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
        """Lock the table of named states in a `with` block, and first remove expired leases with their states.

        For any thread. The block must not await anything.
        """
        with self._lock:
            self._table.end_expired()
            yield self._table

    def report_forgotten(self, digest: str) -> None:
        """Report to the callbacks of `on_forgotten` that no name stands for a state with this digest any more."""
        _report(self._listeners, digest)

    def _shown(self, entry: NamedState) -> NamedState:
        with self.locked() as table:
            return table.shown(entry)

    def _write(self, entries: Sequence[NamedState], undo: Callable[[], object]) -> None:
        """Write the files of the states `entries`, which are already in the table. If that fails, undo the change.

        `undo` removes it from the table, and the error is raised. `undo` is not called if one of the entries was
        changed meanwhile.
        """
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
        """Delete a persistent state: first its file, so that it can't come back at the next start, then its entry.

        Returns False, without removing the entry, if the state was changed meanwhile.
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
        """Make the file of the persistent state with id `key` match the table of named states.

        Write the file, or delete it if the table has no persistent state with this id.
        """
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
