"""A folder that belongs to one process at a time: two that wrote and deleted files in one would lose each other's.

The lock is the operating system's, so it ends with the process, however that ends.
"""

from __future__ import annotations

import errno
import os
import sys
import weakref
from pathlib import Path

from rnn_engine.errors import StateError

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
