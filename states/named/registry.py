"""The registry of named states in memory, and the folder in which persistent ones survive a restart.

A state belongs to its owner's lease, which ends when nobody uses what the owner has, or is persistent: then it stays
until it is deleted, and is kept in a folder. One that the operator brings at every start is read-only, since that file
would undo every change.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rnn_engine.errors import InvalidRequestError, NotFoundError, OverloadedError, StateError, StorageError
from rnn_engine.files import TEMPORARY_SUFFIX, delete_file
from states.files.exchange import StateFiles
from states.files.full import modified
from states.files.reading import LoadedState, StateForm
from states.frozen import FrozenState
from states.named import changes
from states.named.entry import NamedState, OwnerLease, Quota, Retention, check_changeable, check_new_name
from states.named.table import NamedStateTable


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


# Persistent states in a folder: one full-state file each, called after its id, and loaded again at the next start.

_SUFFIX = ".state"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class FoundState:
    """A persistent state of an earlier run."""

    name: str
    id: uuid.UUID
    created: float  # Unix time of the file, seconds
    file: str
    frozen: FrozenState


class SavedStates:
    """The files of persistent states. Other files in the folder are left alone."""

    def __init__(self, files: StateFiles, folder: Path) -> None:
        """Makes the folder where it is missing. Raises OSError where it can't be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._files = files
        self._folder = folder

    def load(self) -> Iterator[FoundState]:
        """What is there, oldest first. What is damaged, of another model or no file is told in the log and stays."""
        for unfinished in self._folder.glob(f"*{_SUFFIX}.*{TEMPORARY_SUFFIX}"):
            if _id_of(unfinished.name.partition(".")[0]) is not None:
                with suppress(OSError):
                    unfinished.unlink()  # a write that a crash cut short
        paths = [path for path in self._folder.glob(f"*{_SUFFIX}") if _id_of(path.stem) is not None]
        for path in sorted(paths, key=lambda path: (modified(path), path.name)):
            try:
                found = self._read(path)
            except StateError as error:
                _log.warning("a persistent state is skipped: %s", error)
            else:
                yield found

    def save(self, key: uuid.UUID, name: str, frozen: FrozenState) -> None:
        """Write or replace one. Raises StorageError where it can't be written; the old file is then there."""
        try:
            self._files.save(self._path(key), name, frozen)
        except OSError as error:
            raise StorageError(f"state {name!r} can't be written to the folder of states: {error.strerror}") from error

    def delete(self, key: uuid.UUID) -> None:
        """Delete the file of one, where there is one. Raises StorageError where it can't be deleted."""
        try:
            delete_file(self._path(key))
        except OSError as error:
            raise StorageError(f"state {key} can't be deleted from the folder of states: {error.strerror}") from error

    def _path(self, key: uuid.UUID) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _read(self, path: Path) -> FoundState:
        key = _id_of(path.stem)
        assert key is not None  # the caller has looked
        loaded = self._files.read(path)
        if loaded.name is None:
            raise StateError(f"{path.name}: has no name in it")
        return FoundState(loaded.name, key, modified(path), path.name, self._files.freeze(loaded, path.name))


def _id_of(stem: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(stem)
    except ValueError:
        return None


DEFAULT_CAPACITY = 512 << 20
DEFAULT_MAX_NAMES = 10_000
_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class RegistryUsage:
    """How full the registry is."""

    num_bytes: int  # of all states; copies share theirs
    capacity: int
    names: int
    persistent: int  # of the names
    leases: int
    failed_writes: int = 0  # changes of persistent states that the disk did not take, since the start


class StateRegistry:
    """All names of one model's states. Thread-safe; what it gives out is immutable and outlives its deletion.

    Methods that add, change or delete a persistent state wait for the disk.
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
        """`capacity` bounds the bytes of all states together, `max_names` their number, `quota` those of a namespace.

        `saved` keeps persistent ones; None can't keep any.
        """
        self.files = files
        self._saved = saved
        self._failed_writes = 0
        self._listeners: list[Callable[[str], None]] = []
        self._table = NamedStateTable(
            capacity, max_names, clock, partial(_tell, self._listeners), quota, keeps_persistent=saved is not None
        )
        self._lock = threading.RLock()
        self._disk_lock = threading.Lock()  # taken before the other one

    def on_forgotten(self, forget: Callable[[str], None]) -> None:
        """Have `forget` called with a digest when no name stands for a state of these values any more.

        It is called on any thread, and must not block.
        """
        self._listeners.append(forget)

    def add_file(self, path: Path, name: str | None = None, key: uuid.UUID | None = None) -> NamedState:
        """Read a file that the operator brings. `name` defaults to the file's own, then to the path's stem, and `key`,
        the state's id, to the file's own.

        One that calls itself the default becomes it.
        """
        if name is not None:
            check_new_name(name, "state name")
        if key is not None and self.find(str(key)) is not None:
            raise InvalidRequestError("state id", str(key), "an id that no other state has")
        loaded = self.files.read(path)
        loaded = replace(loaded, id=key or loaded.id)
        entry = self.add(loaded, name or loaded.name or path.stem, path.name)
        if loaded.default:
            self.set_default(entry.name)
        return entry

    def add(self, loaded: LoadedState, name: str, source: str) -> NamedState:
        """Enter a state that the operator brings at every start: it is not kept in the folder, and is read-only."""
        frozen = self.files.freeze(loaded, source)
        with self._changing() as table:
            table.check_free(name, "state name")
            named = changes.make_named(table, name, None, frozen, loaded.form, source, loaded.id)
            entry = replace(named, read_only=True)
            table.enter(entry)
        return entry

    def load_saved(self) -> None:
        """Enter the persistent states of earlier runs. One that has no place any more is told in the log."""
        for found in () if self._saved is None else self._saved.load():
            try:
                with self._changing() as table:
                    version = table.next_version()
                    entry = NamedState(
                        found.id, version, found.name, "full", found.file, found.created, None, found.frozen
                    )
                    table.check_free(found.name, "state name")
                    table.enter(entry)
            except (InvalidRequestError, OverloadedError) as error:
                _log.warning("a persistent state is skipped: %s: %s", found.file, error)

    def put(
        self,
        name: str,
        frozen: FrozenState,
        retention: Retention,
        *,
        source: str,
        form: StateForm = "full",
        key: uuid.UUID | None = None,
    ) -> NamedState:
        """See `StateStore.put`."""
        with self._changing() as table:
            entry = changes.put(table, name, frozen, retention, source=source, form=form, key=key)
        if entry.persistent:
            self._write([entry], lambda: _drop_unwritten(table, [entry]))
        return entry

    def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        """See `StateStore.check_place`."""
        with self._changing() as table:
            changes.check_place(table, name, retention, num_bytes)

    def get(self, name_or_id: str) -> NamedState:
        """See `StateStore.get`."""
        with self._changing() as table:
            return changes.use(table, name_or_id)

    def find(self, name_or_id: str) -> NamedState | None:
        """See `StateStore.find`."""
        with self._changing() as table:
            return table.find(name_or_id)

    def missing(self, name_or_id: str, namespace: str) -> NotFoundError:
        """See `StateStore.missing`."""
        with self._changing() as table:
            return table.missing(name_or_id, namespace)

    def entries(self, namespace: str | None = None) -> tuple[NamedState, ...]:
        """Return all states, or those of a namespace. To look at them is not to use them."""
        with self._changing() as table:
            return table.entries(namespace)

    def room_of(self, namespace: str) -> tuple[int, int]:
        """Return how many bytes the states in a namespace take, and how many they may."""
        with self._changing() as table:
            return table.quotas.used(namespace), table.quotas.num_bytes

    def leases(self, namespace: str | None = None) -> tuple[OwnerLease, ...]:
        """See `StateStore.leases`."""
        with self._changing() as table:
            return tuple(table.leases_of(namespace))

    def end_lease(self, owner: str) -> OwnerLease:
        """See `StateStore.end_lease`."""
        with self._changing() as table:
            return table.end_lease(owner)

    def usage(self) -> RegistryUsage:
        with self._changing() as table:
            entries = table.entries()
            persistent = sum(entry.persistent for entry in entries)
            leases, failed = len(table.leases), self._failed_writes
            return RegistryUsage(table.num_bytes, table.capacity, len(entries), persistent, leases, failed)

    def seconds_left(self, entry: NamedState) -> float | None:
        """Return how long a state stays if its owner uses nothing; None for a persistent one."""
        with self._changing() as table:
            lease = None if entry.owner is None else table.leases.find(entry.owner)
            return None if lease is None else table.leases.seconds_left(lease)

    @property
    def default(self) -> NamedState | None:
        """The state that requests start from which name none; None is the fill values."""
        with self._changing() as table:
            return None if table.default is None else table.named(table.default)

    def set_default(self, name: str | None) -> None:
        """Make a persistent state the default. Raises NotFoundError, or InvalidRequestError for a leased one."""
        with self._changing() as table:
            entry = None if name is None else table.get(name)
            if entry is not None and not entry.persistent:
                raise InvalidRequestError("default state", name, "a persistent state")
            table.default = None if entry is None else entry.name

    def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        """See `StateStore.fork`. The copies share the arrays of the state."""
        with self._changing() as table:
            entries = changes.fork(table, name_or_id, names, retention)
        if retention.persistent:
            self._write(entries, lambda: _drop_unwritten(table, entries))
        return entries

    def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        """See `StateStore.move`."""
        with self._changing() as table:
            old, new = changes.move(table, name_or_id, name, retention)
        if old.persistent or new.persistent:
            self._write([new], lambda: table.swap(new, old))
        return new

    def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        """See `StateStore.compare_and_set`."""
        with self._changing() as table:
            held, new = changes.compare_and_set(table, old, frozen, source=source)
        if new.persistent:
            self._write([new], lambda: table.swap(new, held))
        return new

    def delete(self, name_or_id: str) -> NamedState:
        """See `StateStore.delete`."""
        while True:
            with self._changing() as table:
                entry = table.get(name_or_id)
                check_changeable(entry, "state")
                if not entry.persistent:
                    table.drop(entry, changes.REMOVED)
                    return entry
            with self._disk_lock:
                self._delete_file(entry.id)  # first, so that a name that is gone does not come back
                with self._changing() as table:
                    if table.holds(entry):
                        table.drop(entry, changes.REMOVED)
                        return entry
            # it was changed meanwhile, and whoever did that writes its file again

    def tell_forgotten(self, digest: str) -> None:
        """Tell whoever wants to know that no name stands for a state of these values any more."""
        _tell(self._listeners, digest)

    @contextmanager
    def _changing(self) -> Iterator[NamedStateTable]:
        """Lock the table and drop what has expired."""
        with self._lock:
            self._table.end_expired()
            yield self._table

    def _write(self, entries: Sequence[NamedState], undo: Callable[[], object]) -> None:
        """Persist the change; roll it back if writing fails, unless another has come after it."""
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

    def _delete_file(self, key: uuid.UUID) -> None:
        if self._saved is None:
            return
        try:
            self._saved.delete(key)
        except StorageError as error:
            self._note_failure(error)
            raise

    def _note_failure(self, error: Exception) -> None:
        _log.warning("%s", error)
        with self._lock:
            self._failed_writes += 1

    def _sync(self, key: uuid.UUID) -> None:
        """Write the file of the state of this id, or delete it where there is no such persistent state."""
        if self._saved is None:
            return
        with self._disk_lock:
            with self._lock:
                entry = self._table.of_id(key)
            if entry is not None and entry.persistent:
                self._saved.save(key, entry.name, entry.frozen)
            else:
                self._saved.delete(key)


def _drop_unwritten(table: NamedStateTable, entries: Sequence[NamedState]) -> None:
    for entry in entries:
        table.drop(entry, "it could not be written")


def _tell(listeners: Sequence[Callable[[str], None]], digest: str) -> None:
    for forget in listeners:
        forget(digest)
