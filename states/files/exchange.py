"""A model's states in and out of files, wherever they come from: the operator, a folder, an upload or a request."""

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
    """The file at `requested`, relative to `folder` or to where the server runs, inside `folder`, symbolic links
    followed.

    Raises InvalidRequestError, which names `field`, where the path leaves the folder or where there is no folder to
    read from; NotFoundError where no file is there, or one that the server keeps for itself: whoever may have that
    state has it by its name, and what others have asked before nobody may try by a hash.
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
    except (OSError, RuntimeError) as error:  # a loop of links: the one or the other, by the version of Python
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


# A folder that belongs to one process at a time: two that wrote and deleted files in one would lose each other's.
#
# The lock is the operating system's, so it ends with the process, however that ends.

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

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}  # the last two by Windows


class OwnedFolder:
    """A folder that is ours until `release`, or until this is collected."""

    def __init__(self, path: Path, what: str, lock_name: str) -> None:
        """Make the folder where it is missing; `what` says in errors which one it is.

        Raises StateError where it can't be used or another process has it.
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
        """Let another process have it. Idempotent."""
        self._close()


ExportForm: TypeAlias = Literal["full", "tuned", "prefab"]

_KIND = "named"
_UNKNOWN = ""  # what a named state once started from


class StateFiles:
    """The files of one model's states. Thread-safe."""

    def __init__(self, shape: ModelShape, model: str, folder: Path | None = None) -> None:
        """`model` is the fingerprint that full-state files must have; `folder` is where requests may read from."""
        self.shape = shape
        self.folder = folder
        self._model = model

    def read(self, path: Path, layout: Layout | None = None) -> LoadedState:
        """Read a state from a file of any form. Raises StateError where it is damaged or does not fit the model."""
        return read_state(path, self.shape, self._model, layout)

    def read_requested(self, requested: str) -> LoadedState:
        """Read a state from a file that a request names, inside the folder alone."""
        return self.read(confined_path(self.folder, requested, "state.path"))

    def read_rows(self, values: Sequence[float] | F32, dims: Sequence[int]) -> LoadedState:
        """Read a state from an array in ai00's order; `dims` are [D, N + 2, L, 1]."""
        return LoadedState("inline", state_from_rows(values, dims, self.shape, "state"))

    def freeze(self, loaded: LoadedState, source: str) -> FrozenState:
        """Return what was loaded as a state to start from.

        Raises StateError, which begins with `source`, where it does not fit the model.
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
        """Write a full-state file; a crash leaves the old one or the new one."""
        save_full_state(path, self._saved(name, frozen), self.shape.version)

    def export(self, form: ExportForm, name: str, key: uuid.UUID, frozen: FrozenState) -> Iterator[bytes | memoryview]:
        """Return the bytes of a file of this form, piece by piece. The form of tuned states leaves out the shifts."""
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
