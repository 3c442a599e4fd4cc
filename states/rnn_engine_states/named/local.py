"""`LocalTable`, the named states of one process: a table in memory, and a folder of files for persistent states."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from rnn_engine.errors import InvalidRequestError, OverloadedError, StateError, StorageError
from rnn_engine.files import TEMPORARY_SUFFIX, delete_file
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.full import modified
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState, check_new_name, parse_id
from rnn_engine_states.named.quota import DEFAULT_CAPACITY, Quota
from rnn_engine_states.named.table import DEFAULT_MAX_NAMES, Change, NamedStateTable, StateUsage

_QUOTA = Quota()
_SUFFIX = ".state"
_log = logging.getLogger(__name__)

T = TypeVar("T")


class SavedStates:
    """The folder with the files of persistent states, full-state files named after ids. Other files are ignored."""

    def __init__(self, files: StateFiles, folder: Path) -> None:
        """Use `folder`, creating it if it is missing, and `files` to read and write its files. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._files = files
        self._folder = folder

    def load(self) -> Iterator[NamedState]:
        """Yield the persistent states in the folder, oldest first, without versions.

        A damaged file, or one of another model, is left in the folder and logged as a warning. Temporary files of
        writes that a crash cut short are deleted.
        """
        for unfinished in self._folder.glob(f"*{_SUFFIX}.*{TEMPORARY_SUFFIX}"):
            if parse_id(unfinished.name.partition(".")[0]) is not None:
                with suppress(OSError):
                    unfinished.unlink()  # a write that a crash cut short
        for path in sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda path: (modified(path), path.name)):
            if (key := parse_id(path.stem)) is not None:
                try:
                    yield self._read(path, key)
                except StateError as error:
                    _log.warning("a persistent state is skipped: %s", error)

    def __contains__(self, key: object) -> bool:
        """Return True if there is a file with the id `key`, perhaps of a state that was skipped."""
        return isinstance(key, uuid.UUID) and self._path(key).exists()

    def save(self, entry: NamedState) -> None:
        """Write a persistent state's file. Raises StorageError, and leaves an earlier file, if that fails."""
        try:
            self._files.save(self._path(entry.id), entry.name, entry.frozen)
        except OSError as error:
            message = f"state {entry.name!r} can't be written to the folder of states: {error.strerror}"
            raise StorageError(message) from error

    def delete(self, key: uuid.UUID) -> None:
        """Delete the file of the state with id `key`, if there is one. Raises StorageError if it can't be deleted."""
        try:
            delete_file(self._path(key))
        except OSError as error:
            raise StorageError(f"state {key} can't be deleted from the folder of states: {error.strerror}") from error

    def _path(self, key: uuid.UUID) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _read(self, path: Path, key: uuid.UUID) -> NamedState:
        loaded = self._files.read(path)
        if loaded.name is None:
            raise StateError(f"{path.name}: has no name for the state")
        frozen = replace(self._files.freeze(loaded, path.name), path=loaded.path)  # the server itself wrote the file
        return NamedState(key, 0, loaded.name, "full", path.name, modified(path), None, frozen)


class LocalTable:
    """Access to a table of named states in this process: a `TableAccess`.

    Files are written on other threads. If a write fails, the change is undone. `add`, `add_file`, `load_saved` and
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
        """Store at most `capacity` bytes and `max_names` names; persistent ones only with a folder `saved`."""
        self.files = files
        self.locks = WeakValueDictionary[uuid.UUID, asyncio.Lock]()
        self._saved = saved
        self._failed_writes = 0
        self._listeners: list[Callable[[str], None]] = []
        self.report_forgotten = partial(_report, self._listeners)
        self._table = NamedStateTable(capacity, quota, clock, self.report_forgotten, max_names=max_names, files=saved)
        self._lock = threading.RLock()
        self._disk_lock = threading.Lock()  # always taken before `_lock`

    def on_forgotten(self, forget: Callable[[str], None]) -> None:
        """Have `forget` called with a digest, on any thread, without blocking, once no name stands for it."""
        self._listeners.append(forget)

    def add_file(self, path: Path, name: str | None = None, key: uuid.UUID | None = None) -> NamedState:
        """Add a read-only state from a file that the operator provides, and return it.

        `name` defaults to the name in the file, else to the path's stem. `key`, the state's id, defaults to the id in
        the file. If the file declares its state as the default, the state becomes the default.
        """
        if name is not None:
            check_new_name(name, "state name")
        if key is not None:
            with self.locked() as table:
                table.check_free_id(key)
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
        """Add a read-only state that the operator loads at every start, without a file in the folder.

        Without an id of its own, it gets one computed from the name and the values, the same at every start.
        """
        frozen = self.files.freeze(loaded, source)
        key = loaded.id or uuid.uuid5(uuid.NAMESPACE_OID, f"{name}\n{frozen.digest}")
        with self.locked() as table:
            table.check_free(name, "state name")
            named = table.make(name, None, frozen, loaded.form, source, key)
            return table.enter(replace(named, read_only=True))

    def load_saved(self) -> None:
        """Add the persistent states of earlier runs; skip and log those without room or a free name and id."""
        for found in () if self._saved is None else self._saved.load():
            try:
                with self.locked() as table:
                    table.check_free(found.name, "state name")
                    table.check_free_id(found.id)
                    table.enter(replace(found, version=table.next_version()))
            except (InvalidRequestError, OverloadedError) as error:
                _log.warning("a persistent state is skipped: %s: %s", found.source, error)

    def set_default(self, name: str | None) -> None:
        """Make a state, by name or id, the default; None for none. Raises NotFoundError, or InvalidRequestError."""
        with self.locked() as table:
            entry = None if name is None else table.find(name)
            if name is not None and entry is None:
                raise table.missing(name)
            if entry is not None and not entry.persistent:
                message = f"the default state has to be persistent, and {name!r} is not"
                raise InvalidRequestError("default state", name, "a persistent state", message)
            table.default = None if entry is None else entry.name

    @contextmanager
    def locked(self) -> Iterator[NamedStateTable]:
        """Lock the table, without expired leases, on any thread. The block must not await anything."""
        with self._lock:
            self._table.end_expired()
            self._table.clear_records()
            yield self._table

    async def ask(self, question: Callable[[NamedStateTable], T], first: str = "") -> T:  # noqa: ARG002
        with self.locked() as table:
            return question(table)

    async def use(self, require: Callable[[NamedStateTable], NamedState], first: str) -> NamedState:  # noqa: ARG002
        with self.locked() as table:
            return table.shown(table.use(require(table)))

    async def change(
        self,
        action: Callable[[NamedStateTable], T],
        values: FrozenState | None = None,  # noqa: ARG002
        name: str = "",  # noqa: ARG002
    ) -> T:
        with self.locked() as table:
            default = table.default
            result = action(table)
            changes = [change for change in table.changes() if change.persistent]
        if changes:
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(None, self._write, changes, default))  # even if cancelled
        return result

    async def default(self) -> NamedState | None:
        with self.locked() as table:
            return None if table.default is None else table.named(table.default)

    def usage(self) -> StateUsage:
        with self.locked() as table:
            return table.usage(self._failed_writes)

    def _write(self, changes: Sequence[Change], default: str | None) -> None:
        """Write or delete the files of states that were changed in the table.

        If that fails, undo the change, unless one of the states was changed meanwhile, and raise the error. `default`
        was the default state before the change.
        """
        try:
            for change in changes:
                self._sync(change.id)
        except Exception as error:
            _log.warning("%s", error)
            with self._lock:
                self._failed_writes += 1
                self._table.undo(changes, default, "its file could not be written")
            for change in changes:
                with suppress(Exception):
                    self._sync(change.id)
            raise

    def _sync(self, key: uuid.UUID) -> None:
        """Write the file of the persistent state with id `key`, or delete it if the table has none."""
        if self._saved is None:
            return
        with self._disk_lock:
            with self._lock:
                entry = self._table.of_id(key)
            if entry is not None and entry.persistent:
                self._saved.save(entry)
            else:
                self._saved.delete(key)


def _report(listeners: Sequence[Callable[[str], None]], digest: str) -> None:
    for forget in listeners:
        forget(digest)
