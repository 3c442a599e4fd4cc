"""Persistent states in a folder: one full-state file each, named after the state's id and loaded at the next start."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rnn_engine.errors import StateError, StorageError
from rnn_engine.files import TEMPORARY_SUFFIX, delete_file
from states.files.exchange import StateFiles
from states.files.full import modified
from states.frozen import FrozenState

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
        """Make the folder if it is missing. Raises OSError if that fails."""
        folder.mkdir(parents=True, exist_ok=True)
        self._files = files
        self._folder = folder

    def load(self) -> Iterator[FoundState]:
        """Yield the saved states, oldest first, and delete unfinished files of an earlier run.

        A path that is no file, a damaged file and a state of another model are logged, skipped and left in the folder.
        """
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
        """Write or replace the file of a state. Raises StorageError if that fails; an old file then remains."""
        try:
            self._files.save(self._path(key), name, frozen)
        except OSError as error:
            raise StorageError(f"state {name!r} can't be written to the folder of states: {error.strerror}") from error

    def delete(self, key: uuid.UUID) -> None:
        """Delete the file of a state, if it has one. Raises StorageError if that fails."""
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
            raise StateError(f"{path.name}: has no name for the state")
        return FoundState(loaded.name, key, modified(path), path.name, self._files.freeze(loaded, path.name))


def _id_of(stem: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(stem)
    except ValueError:
        return None
