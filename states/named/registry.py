"""The registry of states under names, whether they came from files or were made by the server.

A state belongs to its owner's lease, which ends when nobody uses what the owner has, or is persistent: then it stays
until it is removed and, unless the operator brings its file at every start, is kept in a folder.

Knows states, names, leases and files; knows neither requests nor the cache.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rnn_engine.errors import InvalidRequestError, NotFoundError, OverloadedError, StateError
from states.files.exchange import StateFiles
from states.files.reading import LoadedState, StateForm
from states.frozen import FrozenState
from states.named.entry import NamedState, Retention, check_new_name
from states.named.keyed_locks import KeyedLocks
from states.named.saved import SavedStates
from states.named.table import NamedStateTable

DEFAULT_CAPACITY = 512 << 20
DEFAULT_MAX_NAMES = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistryUsage:
    """How full the registry is."""

    num_bytes: int
    capacity: int


class StateRegistry:
    """All names of one model's states. Thread-safe; what it hands out is immutable and outlives its removal.

    What enters or changes a persistent state writes to the disk, which may take a while. `locks` orders those who
    change one state by running the model.
    """

    def __init__(
        self,
        files: StateFiles,
        *,
        capacity: int = DEFAULT_CAPACITY,
        max_names: int = DEFAULT_MAX_NAMES,
        saved: SavedStates | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`capacity` bounds the bytes of all states together, `max_names` their number.

        `saved` keeps persistent ones; None can't keep any.
        """
        self.files = files
        self.locks = KeyedLocks()
        self._saved = saved
        self._listeners: list[Callable[[str], None]] = []
        self._shelf = NamedStateTable(capacity, max_names, clock, self._tell)
        self._lock = threading.RLock()
        self._disk_lock = threading.Lock()  # taken before the other one

    def on_forgotten(self, forget: Callable[[str], None]) -> None:
        """Have `forget` called with a digest when the last state of these values goes. It must not block."""
        self._listeners.append(forget)

    def add_file(self, path: Path, name: str | None = None) -> NamedState:
        """Read a file that the operator brings. `name` defaults to the file's own, then to the path's stem.

        One that calls itself the default becomes it.
        """
        if name is not None:
            check_new_name(name, "state name")
        loaded = self.files.read(path)
        entry = self.add(loaded, name or loaded.name or path.stem, path.name)
        if loaded.default:
            self.set_default(entry.name)
        return entry

    def add(self, loaded: LoadedState, name: str, source: str) -> NamedState:
        """Enter a persistent state that the operator brings at every start, so that it is not kept in the folder."""
        initial = self.files.make_initial(loaded, source)
        with self._changing() as shelf:
            shelf.check_free(name, "state name")
            entry = _named(shelf, name, None, initial, loaded.form, source, loaded.id)
            shelf.enter(entry)
        return entry

    def load_saved(self) -> None:
        """Enter the persistent states of earlier runs. One that has no place any more is told in the log."""
        for found in () if self._saved is None else self._saved.load():
            entry = NamedState(found.name, found.id, "full", found.file, found.created, None, found.initial)
            try:
                with self._changing() as shelf:
                    shelf.check_free(found.name, "state name")
                    shelf.enter(entry)
            except (InvalidRequestError, OverloadedError) as error:
                _log.warning("a persistent state is skipped: %s: %s", found.file, error)

    def put(
        self,
        name: str,
        initial: FrozenState,
        keeping: Retention,
        *,
        source: str,
        form: StateForm = "full",
        key: uuid.UUID | None = None,
    ) -> NamedState:
        """Enter a state under a free name. `key` is the id that it has if that is free.

        Raises InvalidRequestError for a name that is taken, OverloadedError where there is no room, StateError where
        it can't be written; then all is as it was.
        """
        with self._changing() as shelf:
            self._check_place(shelf, name, keeping, initial.num_bytes)
            entry = _named(shelf, name, shelf.renew(keeping, name), initial, form, source, key)
            shelf.enter(entry)
        if entry.persistent:
            self._write([entry], lambda: _drop_unwritten(shelf, [entry]))
        return entry

    def check_place(self, name: str, keeping: Retention, num_bytes: int) -> None:
        """Raise what `put` would raise at this moment for a state of this size. Nothing is kept free for it."""
        with self._changing() as shelf:
            self._check_place(shelf, name, keeping, num_bytes)

    def get(self, name_or_id: str) -> NamedState:
        """The state of this id or, else, of this name; its owner's lease has its full time from now on.

        Raises NotFoundError, which lists the names and says what became of this one.
        """
        with self._changing() as shelf:
            return _use(shelf, name_or_id)

    def entries(self) -> tuple[NamedState, ...]:
        """All of them. To look at them is not to use them."""
        with self._changing() as shelf:
            return shelf.entries()

    def usage(self) -> RegistryUsage:
        with self._changing() as shelf:
            return RegistryUsage(shelf.num_bytes, shelf.capacity)

    def seconds_left(self, entry: NamedState) -> float | None:
        """How long a state stays if its owner uses nothing; None for a persistent one."""
        with self._changing() as shelf:
            lease = None if entry.owner is None else shelf.leases.find(entry.owner)
            return None if lease is None else shelf.leases.seconds_left(lease)

    @property
    def default(self) -> NamedState | None:
        """What a request that names none starts from; None means the fill values."""
        with self._changing() as shelf:
            return None if shelf.default is None else shelf.named(shelf.default)

    def set_default(self, name: str | None) -> None:
        """Make a persistent state the default. Raises NotFoundError, or InvalidRequestError for a leased one."""
        with self._changing() as shelf:
            entry = None if name is None else shelf.find(name)
            if entry is not None and not entry.persistent:
                raise InvalidRequestError("default state", name, "a persistent state")
            shelf.default = None if entry is None else entry.name

    def fork(self, name_or_id: str, names: Sequence[str], keeping: Retention) -> tuple[NamedState, ...]:
        """Enter a state under more names, all of them or none. They share its arrays."""
        if not names or len(set(names)) < len(names):
            raise InvalidRequestError("names", list(names), "one or more names, all different")
        with self._changing() as shelf:
            origin = _use(shelf, name_or_id)
            shelf.check_room(0, None, len(names))
            for name in names:
                self._check_place(shelf, name, keeping, 0)
            owners = [shelf.renew(keeping, name) for name in names]
            entries = [
                _named(shelf, name, owner, origin.initial, origin.form, f"copy of {origin.name}")
                for name, owner in zip(names, owners, strict=True)
            ]
            for entry in entries:
                shelf.enter(entry)
        if keeping.persistent:
            self._write(entries, lambda: _drop_unwritten(shelf, entries))
        return tuple(entries)

    def take(self, name_or_id: str, new_name: str, keeping: Retention) -> NamedState:
        """Move a state to another name, another owner, or both. The id stays; the old name is gone."""
        with self._changing() as shelf:
            old = _use(shelf, name_or_id)
            if new_name == old.name:
                self._check_keeping(keeping)
            else:
                self._check_place(shelf, new_name, keeping, 0)
            new = replace(old, name=new_name, owner=shelf.renew(keeping, new_name))
            shelf.swap(old, new)
        if old.persistent or new.persistent:
            self._write([new], lambda: shelf.swap(new, old))
        return new

    def replace(self, old: NamedState, initial: FrozenState, source: str) -> NamedState:
        """Let a name stand for another state, in one step. The id stays.

        Raises NotFoundError where the name no longer stands for `old`, OverloadedError where there is no room.
        """
        new = replace(old, initial=initial, source=source, form="full", created=time.time())
        with self._changing() as shelf:
            if not shelf.holds(old):
                raise NotFoundError(f"state {old.name!r} was removed or replaced meanwhile")
            if old.owner is not None:
                shelf.leases.renew(old.owner)
            shelf.swap(old, new)
        if new.persistent:
            self._write([new], lambda: shelf.swap(new, old))
        return new

    def remove(self, name_or_id: str) -> NamedState:
        """Take one out. Sequences that run from it go on. Raises NotFoundError."""
        with self._changing() as shelf:
            entry = shelf.find(name_or_id)
            shelf.drop(entry, "it was removed")
        if entry.persistent:
            self._sync(entry.id)
        return entry

    def _tell(self, digest: str) -> None:
        for forget in self._listeners:
            forget(digest)

    @contextmanager
    def _changing(self) -> Iterator[NamedStateTable]:
        """The shelf for oneself, without what has expired."""
        with self._lock:
            self._shelf.end_expired()
            yield self._shelf

    def _check_place(self, shelf: NamedStateTable, name: str, keeping: Retention, num_bytes: int) -> None:
        self._check_keeping(keeping)
        check_new_name(name, "name")
        shelf.check_free(name, "name")
        shelf.check_room(num_bytes, keeping.owner_of(name))

    def _check_keeping(self, keeping: Retention) -> None:
        keeping.check()
        if keeping.persistent and self._saved is None:
            raise InvalidRequestError("persistent", True, "false: the server has no folder of states")

    def _write(self, entries: Sequence[NamedState], undo: Callable[[], object]) -> None:
        """Let the disk follow; where that fails, undo the change, unless another has come after it."""
        try:
            for entry in entries:
                self._sync(entry.id)
        except StateError:
            with self._lock:
                if all(self._shelf.holds(entry) for entry in entries):
                    undo()
            for entry in entries:
                with suppress(StateError):
                    self._sync(entry.id)
            raise

    def _sync(self, key: uuid.UUID) -> None:
        """Make the file of the state of this id follow what the registry has of it now."""
        if self._saved is None:
            return
        with self._disk_lock:
            with self._lock:
                entry = self._shelf.of_id(key)
            if entry is not None and entry.persistent:
                self._saved.save(key, entry.name, entry.initial)
            else:
                self._saved.delete(key)


def _use(shelf: NamedStateTable, name_or_id: str) -> NamedState:
    entry = shelf.find(name_or_id)
    if entry.owner is not None:
        shelf.leases.renew(entry.owner)
    return entry


def _drop_unwritten(shelf: NamedStateTable, entries: Sequence[NamedState]) -> None:
    for entry in entries:
        shelf.drop(entry, "it could not be written")


def _named(
    shelf: NamedStateTable,
    name: str,
    owner: str | None,
    initial: FrozenState,
    form: StateForm,
    source: str,
    key: uuid.UUID | None = None,
) -> NamedState:
    """The state's own id, or one that follows from name and values, so that it is the same at every start."""
    key = key or uuid.uuid5(uuid.NAMESPACE_OID, f"{name}\n{initial.digest}")
    if shelf.of_id(key) is not None or shelf.named(str(key)) is not None:
        key = uuid.uuid4()
    return NamedState(name, key, form, source, time.time(), owner, initial)
