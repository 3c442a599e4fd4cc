"""`StateStore`, the operations on named states. The table of the states may be in this process or shared by servers.

A state is kept by its owner's lease, which expires if none of the owner's states is used. A persistent state is kept
until it is deleted. A state that the operator loads at every start is read-only, since loading its file again would
undo every change.
"""

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
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from rnn_engine.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    NotFoundError,
    OverloadedError,
    StateError,
    StorageError,
)
from rnn_engine.files import TEMPORARY_SUFFIX, delete_file
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.full import modified
from rnn_engine_states.files.reading import LoadedState, StateForm
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import (
    NamedState,
    Retention,
    check_changeable,
    check_names,
    check_new_name,
    full_name,
    parse_id,
)
from rnn_engine_states.named.quota import DEFAULT_CAPACITY, Quota
from rnn_engine_states.named.table import DEFAULT_MAX_NAMES, Change, NamedStateTable, StateListing, StateUsage

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TableAccess(Protocol):
    """The interface to a table of named states, in this process or in a store that several servers share.

    The functions that its methods take get the table as it is at that moment. They must neither await nor keep it.
    Methods must be called on one event loop, and do not block it.
    """

    @property
    def locks(self) -> WeakValueDictionary[uuid.UUID, asyncio.Lock]:
        """The locks that tasks of this engine hold or wait for to change a state by running the model, by its id."""

    async def ask(self, question: Callable[[NamedStateTable], T], first: str = "") -> T:
        """Return what `question` returns for the table. It changes nothing.

        If the operator's own states include one that is called `first` or has this id, the table may have no others.
        """

    async def use(self, require: Callable[[NamedStateTable], NamedState], first: str) -> NamedState:
        """Return the state of `require` with its arrays, and renew its lease. Raises NotFoundError if they are lost."""

    async def change(
        self, action: Callable[[NamedStateTable], T], values: FrozenState | None = None, name: str = ""
    ) -> T:
        """Change the table by `action`, save the change, and return the result. After an error nothing has changed.

        `action` may be called several times. `values` has the arrays of the state that `action` adds. If `action` adds
        a state by another's arrays, `name` is what the caller called the other one. Raises the errors of `action`,
        StorageError if the change can't be saved, and NotFoundError if the arrays are lost.
        """

    async def default(self) -> NamedState | None: ...

    def usage(self) -> StateUsage:
        """Return how many named states, leases and bytes are stored, with the limits on them."""


class Viewer:
    """Who uses the named states, and what they may see and change. This one may do all, and says full names.

    A subclass translates between the names that its client says and the full names of the table.
    """

    home: str = ""  # the namespace in which names are looked up first
    listed: str | None = None  # the namespace whose states and leases are listed, with the shared states; None = all
    default: str | None = None  # the name of the default state, if it is not the table's
    chooses_ids: bool = True

    def sees(self, entry: NamedState) -> bool:  # noqa: ARG002
        """Return True if this viewer may know that a state exists."""
        return True

    def shown(self, entry: NamedState) -> NamedState:
        """Return a state as this viewer sees it. It is read-only if the viewer may not change it."""
        return entry

    def place(
        self,
        table: NamedStateTable,  # noqa: ARG002
        name: str,
        retention: Retention,
        moved: NamedState | None = None,  # noqa: ARG002
    ) -> tuple[str, Retention]:
        """Return the full name and retention of a new or `moved` state. Raises ForbiddenError, InvalidRequestError."""
        return name, retention


_OPERATOR = Viewer()


class StateStore:
    """The named states of a model as one viewer sees them. Its methods must be called on one event loop.

    The returned objects are immutable, and stay valid when the state is deleted. Using a state renews its owner's
    lease. Only the states that `get`, `default`, `put` and `compare_and_set` return are sure to have their arrays in
    memory. Every method but `usage` raises UnavailableError if the table is in a store that does not answer.
    """

    def __init__(self, access: TableAccess, viewer: Viewer = _OPERATOR) -> None:
        """Use the table that `access` reaches, as far as `viewer` may."""
        self._access = access
        self._viewer = viewer

    def seen_by(self, viewer: Viewer) -> StateStore:
        return StateStore(self._access, viewer)

    async def get(self, name_or_id: str) -> NamedState:
        """Return the state of an id, or else name, and renew its lease. Raises NotFoundError, which says why."""
        require = partial(self._require, name_or_id=name_or_id)
        return self._viewer.shown(await self._access.use(require, full_name(self._viewer.home, name_or_id)))

    async def find(self, name_or_id: str) -> NamedState | None:
        """Return the state of an id, or else name, or None. Renews no lease."""

        def look(table: NamedStateTable) -> NamedState | None:
            found = self._find(table, name_or_id)
            return None if found is None else self._shown(table, found)

        return await self._access.ask(look, full_name(self._viewer.home, name_or_id))

    async def list(self) -> StateListing:
        """Return all named states that the viewer sees. Renews no lease."""
        listing = await self._access.ask(lambda table: table.listing(self._viewer.listed))
        shown = tuple(self._viewer.shown(entry) for entry in listing.entries if self._viewer.sees(entry))
        return replace(listing, entries=shown)

    def usage(self) -> StateUsage:
        """Return how many named states, leases and bytes of all viewers are stored, with the limits on them."""
        return self._access.usage()

    async def default(self) -> NamedState | None:
        """Return the default state, or None. Raises ModelNotFoundError if the viewer's own does not exist."""
        if self._viewer.default is not None:
            try:
                return await self.get(self._viewer.default)
            except NotFoundError as error:
                raise ModelNotFoundError(f"model: {error}") from None
        default = await self._access.default()
        return None if default is None else self._viewer.shown(default)

    async def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        """Raise the error that `put` would raise for `num_bytes` under `name`, if any. Reserves no room."""
        await self._access.ask(lambda table: table.check_place(*self._viewer.place(table, name, retention), num_bytes))

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

        `key` is ignored if the viewer may not choose ids. Raises ForbiddenError if the viewer may not add the state,
        InvalidRequestError if the name is invalid or in use, OverloadedError if there is no room, and StorageError if a
        persistent state can't be written. After an error, nothing has changed.
        """
        await self.check_place(name, retention, frozen.num_bytes)  # before its values are sent to a store

        def enter(table: NamedStateTable) -> NamedState:
            place, kept = self._viewer.place(table, name, retention)
            entry = table.put(place, frozen, kept, source, form, key if self._viewer.chooses_ids else None)
            return self._shown(table, entry)

        return replace(await self._access.change(enter, frozen), frozen=frozen)

    async def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        """Replace the values of the named state `old` if it has not changed since then. Its name and id stay the same.

        Raises NotFoundError if the state was deleted or changed, InvalidRequestError if it is read-only,
        OverloadedError if there is no room, and StorageError if it can't be written.
        """
        check_changeable(old, "state")

        def swap(table: NamedStateTable) -> NamedState:
            held = table.of_id(old.id)
            if held is None or held != old or not self._viewer.sees(held):
                raise NotFoundError(f"state {old.plain_name!r} was removed or replaced meanwhile")
            check_changeable(self._viewer.shown(held), "state")
            return self._shown(table, table.set(held, frozen, source))

        return replace(await self._access.change(swap, frozen), frozen=frozen)

    async def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        """Add copies of a state under `names`, all or none. Raises the errors of `get` and `put`."""

        def copy(table: NamedStateTable) -> tuple[NamedState, ...]:
            check_names(names)
            origin = self._require(table, name_or_id)
            places = [self._viewer.place(table, name, retention) for name in names]
            made = table.fork(origin, [place for place, _ in places], places[0][1])
            return tuple(self._shown(table, entry) for entry in made)

        return await self._access.change(copy, name=name_or_id)

    async def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        """Change a state's name, owner or both. Raises as `get` and `put` do, and InvalidRequestError if read-only."""

        def move(table: NamedStateTable) -> NamedState:
            held = self._require_changeable(table, name_or_id)
            place, kept = self._viewer.place(table, name, retention, held)
            return self._shown(table, table.move(held, place, kept))

        return await self._access.change(move, name=name_or_id)

    async def delete(self, name_or_id: str) -> NamedState:
        """Delete a state, and return it. Sequences that started from it continue.

        Raises NotFoundError if there is no such state, InvalidRequestError if it is read-only, and StorageError if its
        file can't be deleted. After an error, nothing has changed.
        """

        def drop(table: NamedStateTable) -> NamedState:
            return self._viewer.shown(table.drop(self._require_changeable(table, name_or_id), "it was removed"))

        return await self._access.change(drop)

    def lock(self, key: uuid.UUID) -> asyncio.Lock:
        """Return the lock of a state among this engine's tasks, which get it in their order; see `compare_and_set`."""
        return self._access.locks.setdefault(key, asyncio.Lock())

    def _find(self, table: NamedStateTable, name_or_id: str) -> NamedState | None:
        """Return the state with this name or id, of the viewer's own namespace first, or None if unseen."""
        candidates = dict.fromkeys((full_name(self._viewer.home, name_or_id), name_or_id))
        found = (table.find(name) for name in candidates)
        return next((entry for entry in found if entry is not None and self._viewer.sees(entry)), None)

    def _require(self, table: NamedStateTable, name_or_id: str) -> NamedState:
        found = self._find(table, name_or_id)
        if found is None:
            raise table.missing(name_or_id, self._viewer.home)
        return found

    def _require_changeable(self, table: NamedStateTable, name_or_id: str) -> NamedState:
        held = self._require(table, name_or_id)
        check_changeable(self._viewer.shown(held), "state")
        return held

    def _shown(self, table: NamedStateTable, entry: NamedState) -> NamedState:
        return self._viewer.shown(table.shown(entry))


# The named states of one process: a table in memory, and a folder of files for persistent states.

_QUOTA = Quota()
_SUFFIX = ".state"


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
