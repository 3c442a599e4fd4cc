"""Reading a model's states from files and writing them: files of the operator, of a folder, of an upload or request.

filelock is not used for the lock of a folder: it is a package of 1.4 MB, and the lock is one call of the system.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import uuid
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError, is_inner_path
from rnn_engine.types import F32, ModelShape
from states.files.full import Origin, SavedState, file_parts, full_state_parts, save_full_state
from states.files.prefab import Prefab, encode_prefab, state_from_rows
from states.files.reading import LAYOUT_KEY, Layout, LoadedState, read_state, tuned_from_state
from states.frozen import FrozenState, Payload, freeze_state

_OWN_FILE = re.compile(r"[0-9a-f-]{32,}\.state", re.IGNORECASE)
"""Persistent states, called after their ids, and those of a cache in the same folder, after a hash of their tokens."""


def confined_path(folder: Path | None, requested: str, field: str) -> Path:
    """Return the path of the file `requested` inside `folder`, with symbolic links followed.

    `requested` is relative to `folder` or to the server's working directory.
    Raises InvalidRequestError, which names `field`, if the path leaves the folder or no folder is configured.
    Raises NotFoundError if there is no such file, or if it is one of the server's own. A client that may use such a
    state gets it by its name, and must not find out by a hash what others have asked.
    """
    if folder is None:
        raise InvalidRequestError(field, requested, "no path at all: no folder of state files is configured")
    allowed = "a relative path inside the folder of state files"
    if not is_inner_path(requested):
        raise InvalidRequestError(field, requested, allowed)
    root = folder.resolve()
    try:
        target = next(
            (
                path
                for base in (root, Path.cwd())
                if (path := (base / requested).resolve()).is_relative_to(root) and path.is_file()
            ),
            (root / requested).resolve(),
        )
    except (OSError, RuntimeError) as error:  # a loop of links: which error depends on the version of Python
        raise InvalidRequestError(field, requested, allowed) from error
    if not target.is_relative_to(root):
        raise InvalidRequestError(field, requested, allowed)
    try:
        found = target.is_file()
    except OSError as error:  # a name that is too long
        raise InvalidRequestError(field, requested, allowed) from error
    if not found or _OWN_FILE.fullmatch(target.name):
        raise NotFoundError(f"{field}: no state file {requested!r} in the folder of state files")
    return target


# A folder for one process at a time: two processes that write and delete files in it would lose each other's files.
#
# The lock is the operating system's, so it ends with the process, even if the process is killed.

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


CACHE_LOCK = "in-use.lock"
STATES_LOCK = "states-in-use.lock"
"""The names of the locks differ, so that one server may keep both in one folder."""

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}  # the last two on Windows


class OwnedFolder:
    """A folder locked for this process until `release`, or until the object is collected."""

    def __init__(self, path: Path, what: str, lock_name: str) -> None:
        """Make the folder if it is missing, and lock it. Errors call the folder `what`.

        Raises StateError if the folder can't be used or another process has locked it.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path / lock_name, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StateError(f"{what} {path}: {error.strerror}; expected a folder to write into") from error
        self._close = weakref.finalize(self, os.close, descriptor)
        try:
            _lock(descriptor)
        except OSError as error:
            self._close()
            if error.errno in _HELD:
                raise StateError(f"{what} {path}: another process uses it; expected one of its own") from error
            raise StateError(f"{what} {path}: can't be locked: {error.strerror}; expected one that can") from error

    def release(self) -> None:
        """Unlock the folder for other processes. Idempotent."""
        self._close()


ExportForm: TypeAlias = Literal["full", "tuned", "prefab"]

_KIND = "named"
_UNKNOWN = ""  # what a named state started from


class StateFiles:
    """Reads and writes the files of one model's states. Thread-safe."""

    def __init__(self, shape: ModelShape, model: str, folder: Path | None = None) -> None:
        """`model` is the fingerprint that full-state files must have. Requests may read files in `folder`."""
        self.shape = shape
        self.folder = folder
        self._model = model

    def read(self, path: Path, layout: Layout | None = None) -> LoadedState:
        """Read a state from a file of any form. Raises StateError if it is damaged or does not fit the model."""
        return read_state(path, self.shape, self._model, layout)

    def read_requested(self, requested: str) -> LoadedState:
        """Read a state from a file that a request names. The file must be in the folder."""
        return self.read(confined_path(self.folder, requested, "state.path"))

    def read_rows(self, values: Sequence[float] | F32, dims: Sequence[int]) -> LoadedState:
        """Read a state from an array in ai00's order; `dims` are [D, N + 2, L, 1]."""
        return LoadedState("inline", state_from_rows(values, dims, self.shape, "state"))

    def freeze(self, loaded: LoadedState, source: str) -> FrozenState:
        """Return a loaded state as one from which sequences can start.

        Raises StateError if it does not fit the model. The message begins with `source`.
        """
        return freeze_state(
            loaded.state,
            self.shape,
            source,
            logits=loaded.logits,
            num_tokens=loaded.num_tokens,
            last_tokens=loaded.last_tokens,
        )

    def save(self, path: Path, name: str, frozen: FrozenState) -> None:
        """Write a full-state file. After a crash there is the old file or the new one."""
        save_full_state(path, self._saved(name, frozen), self.shape.version)

    def export(self, form: ExportForm, name: str, key: uuid.UUID, frozen: FrozenState) -> Iterator[bytes | memoryview]:
        """Return the bytes of a file of this form, in pieces. The form "tuned" leaves out the shifts."""
        match form:
            case "full":
                return full_state_parts(self._saved(name, frozen), self.shape.version)
            case "tuned":
                layout: Layout = "key_value"
                return file_parts(tuned_from_state(frozen.state, self.shape, layout), {LAYOUT_KEY: layout})
            case "prefab":
                return iter([encode_prefab(Prefab(name, key, False, frozen.state), self.shape)])

    def _saved(self, name: str, frozen: FrozenState) -> SavedState:
        origin = Origin(self._model, _UNKNOWN, frozen.num_tokens or 0, _KIND, name, frozen.last_tokens)
        return SavedState(origin, None, Payload(frozen.state, frozen.logits))
