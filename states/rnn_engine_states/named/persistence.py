"""Save persistent states in a folder as full-state files named after their ids, and load them at the next start."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rnn_engine.errors import StateError, StorageError
from rnn_engine.files import TEMPORARY_SUFFIX, delete_file
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.full import modified
from rnn_engine_states.frozen import FrozenState

_SUFFIX = ".state"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class FoundState:
    """A persistent state that was loaded from a file of an earlier run."""

    name: str
    id: uuid.UUID
    created: float  # Unix time of the file, seconds
    file: str
    frozen: FrozenState


class SavedStates:
    """The folder with the files of persistent states. Other files in it are ignored."""

    def __init__(self, files: StateFiles, folder: Path) -> None:
        """Use `folder`, creating it if it is missing, and `files` to read and write its files. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._files = files
        self._folder = folder

    def load(self) -> Iterator[FoundState]:
        """Yield the persistent states in the folder, oldest first.

        A damaged file, or one of another model, is left in the folder and logged as a warning. Temporary files of
        writes that a crash cut short are deleted.
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
        """Write the file of the state with id `key`, replacing an earlier file of this id.

        Raises StorageError if it can't be written; an earlier file is then unchanged.
        """
        try:
            self._files.save(self._path(key), name, frozen)
        except OSError as error:
            raise StorageError(f"state {name!r} can't be written to the folder of states: {error.strerror}") from error

    def delete(self, key: uuid.UUID) -> None:
        """Delete the file of the state with id `key`, if there is one. Raises StorageError if it can't be deleted."""
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
        frozen = replace(self._files.freeze(loaded, path.name), path=loaded.path)  # the server itself wrote the file
        return FoundState(loaded.name, key, modified(path), path.name, frozen)


def _id_of(stem: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(stem)
    except ValueError:
        return None
