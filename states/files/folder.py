"""A folder that belongs to one process at a time: two that wrote and deleted files in one would lose each other's.

The lock is the operating system's, so it ends with the process, however that ends.
"""

from __future__ import annotations

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


LOCK_NAME = "in-use.lock"


class OwnedFolder:
    """A folder that is ours until `release`, or until this is collected."""

    def __init__(self, path: Path) -> None:
        """Make it where it is missing. Raises StateError where it can't be used or another process has it."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StateError(f"cache folder {path}: {error.strerror}; expected a folder to write into") from error
        self._close = weakref.finalize(self, os.close, descriptor)
        try:
            _lock(descriptor)
        except OSError as error:
            self._close()
            raise StateError(f"cache folder {path}: another process uses it; expected one of its own") from error

    def release(self) -> None:
        """Let another process have it. Idempotent."""
        self._close()
