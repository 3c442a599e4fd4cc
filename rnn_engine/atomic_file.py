"""Write files so that readers, and whoever comes after a crash, find the old content or the new one, never a part."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

TEMPORARY_SUFFIX = ".partial"
"""Files that end so are writes that a crash cut short; they may be deleted when nobody writes."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`, which replaces `path` when the block ends and is deleted when it fails.

    The content is on the disk when the block has been left. Raises OSError at once where the folder can't be written
    to, and at the end where the disk has no room; only where nothing but the rename could not be brought to the disk,
    the new content is there all the same.
    """
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with _create(unfinished) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):  # what went wrong before is told
            unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _create(path: Path) -> IO[bytes]:
    return path.open("xb")


def delete_file(path: Path) -> None:
    """Delete a file, where it is there, so that it does not come back after a crash. Raises OSError."""
    path.unlink(missing_ok=True)
    with suppress(OSError):  # it is gone, and only the system's crash could bring it back
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Bring a rename in `folder` to the disk."""
    if os.name != "posix":  # elsewhere a folder can't be opened, and a rename needs no sync
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
