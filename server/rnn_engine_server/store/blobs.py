"""The folder of blobs beside the database: what is too large for a row, such as uploads, results and checkpoints.

The name of a blob begins with the id of the thing that has it; an ending after a dot says what it is to it. It is
written under another name, flushed to the disk and renamed. So after a crash it is there as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from rnn_engine.errors import NotFoundError
from rnn_engine.files import TEMPORARY_SUFFIX, atomic_file, delete_file
from rnn_engine_server.core.bodies import storage_errors

_FAILURE = "the folder of jobs can't be written to"
_log = logging.getLogger(__name__)


class Blobs:
    """The blobs of a folder, which is created when it is first written to. Thread-safe; methods block for the disk."""

    def __init__(self, find_folder: Callable[[], Path]) -> None:
        self._find_folder = find_folder

    def path(self, name: str) -> Path:
        """Return the path of a blob, which need not be there. Raises StorageError without a folder."""
        folder = self._find_folder()
        with storage_errors(_FAILURE):
            folder.mkdir(exist_ok=True)
        return folder / name

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def num_bytes(self, name: str) -> int:
        """Return the size of a blob; 0 if it is not there."""
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError:
            return 0

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Open a blob, which can then be read even if it is deleted. Raises NotFoundError and StorageError."""
        with storage_errors("the file can't be read"):
            try:
                file = self.path(name).open("rb")
            except FileNotFoundError:
                raise NotFoundError(f"the content of {name!r} is gone") from None
        with file:
            yield file

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Write a blob in a `with` block, at whose end it is on the disk. Raises StorageError."""
        with storage_errors(_FAILURE), atomic_file(self.path(name)) as file:
            yield file

    def adopt(self, name: str, of: str) -> tuple[int, str]:
        """Give the blob `of` another name, and return its bytes and the digest of its content. Raises StorageError.

        A second call after a crash completes the first.
        """
        path = self.path(of)
        with storage_errors(_FAILURE):
            if path.exists():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
                path.replace(self.path(name))
            with self.path(name).open("rb") as file:
                return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()

    def delete(self, *names: str) -> None:
        """Delete blobs. One that can't be deleted is deleted at the next start."""
        for name in names:
            with suppress(OSError):
                delete_file(self.path(name))

    @contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Yield the path for a file called `name`, which is deleted at the end, or at the next start after a kill."""
        folder = self.path(f"{os.urandom(16).hex()}{TEMPORARY_SUFFIX}")
        with storage_errors(_FAILURE):
            folder.mkdir()
        try:
            yield folder / name
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, known: Collection[str], *, keep: bool) -> None:
        """Delete what crashes have left: unfinished blobs, and those whose names are not `known`.

        With `keep` the latter are moved to a folder beside this one.
        """
        lost = self.path("").with_name(f"{self.path('').name}.damaged")
        for path in sorted(self.path("").iterdir()):
            with suppress(OSError):
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.suffix == TEMPORARY_SUFFIX or (path.name not in known and not keep):
                    path.unlink()
                elif path.name not in known:
                    lost.mkdir(exist_ok=True)
                    path.replace(lost / path.name)
                    _log.warning("nothing in the database has %s; it is now in %s", path, lost)
