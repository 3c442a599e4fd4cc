"""Read bytes at given positions of a file, and raise ModelError if another program changes the file meanwhile.

The file is not mapped: a mapping would show what others write into the file, and would end the process if they
truncated it.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from rnn_engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file's size, times and identity, by which a change of its content is noticed."""

    size: int  # bytes
    modified: int  # Unix time, ns
    status_changed: int  # Unix time, ns; also changes with the file's names and rights, and can't be set by hand
    inode: int
    volume: int

    def same_content(self, other: FileStamp) -> bool:
        """Return True if an open file was not written to between two stamps: sizes and times are equal."""
        return (self.size, self.modified) == (other.size, other.modified)

    @classmethod
    def of_all(cls, stamps: Sequence[FileStamp]) -> FileStamp:
        """Return a stamp for several files together: it changes if a file does, and has the sum of their sizes."""
        digest = hashlib.sha256(repr(stamps).encode()).digest()
        return cls(
            size=sum(stamp.size for stamp in stamps),
            modified=max(stamp.modified for stamp in stamps),
            status_changed=max(stamp.status_changed for stamp in stamps),
            inode=int.from_bytes(digest[:8], "little"),
            volume=stamps[0].volume,
        )


class ByteSource(Protocol):
    """The interface for reading bytes at given positions, from a file or from memory."""

    path: Path  # its name in messages
    stamp: FileStamp

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of the `size` bytes from position `start` on, which belongs to the caller.

        Raises ModelError if the file ends before them.
        """
        ...

    def close(self) -> None:
        """Close the file or drop the memory that the bytes are read from. Idempotent."""
        ...


class BinaryFile:
    """A file that is open for reading, at any position and from several threads.

    If another file takes its place, for example by a rename, the opened one is still read. Raises ModelError if the
    file can't be read, and if it was truncated or written to since it was opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open(path, "rb", buffering=0, opener=_open_without_waiting)  # noqa: SIM115
        except OSError as error:
            raise self._unreadable(error) from error
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.close()
            raise ModelError(f"{path} is not a regular file")
        self._seeking = threading.Lock()  # for systems that can't read at a position
        self.stamp = self._current_stamp()

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of the `size` bytes from position `start` on, which belongs to the caller."""
        data = np.empty(size, np.uint8)
        self.read_into(start, data.data)
        return data

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill `target` with the file's bytes from position `start` on."""
        if self._file.closed:
            raise ValueError("the file is closed")
        filled = 0
        while filled < len(target):
            try:
                count = self._read_some(start + filled, target[filled:])
            except OSError as error:
                raise self._unreadable(error) from error
            if count == 0:
                raise self._changed(f"it ends after {start + filled} bytes")
            filled += count
        if not self._current_stamp().same_content(self.stamp):
            raise self._changed("another program wrote to it")

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def _read_some(self, start: int, target: memoryview) -> int:
        if hasattr(os, "preadv"):
            return int(os.preadv(self._file.fileno(), [target], start))
        with self._seeking:
            self._file.seek(start)
            return self._file.readinto(target) or 0

    def _current_stamp(self) -> FileStamp:
        status = os.fstat(self._file.fileno())
        return FileStamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)

    def _unreadable(self, error: OSError) -> ModelError:
        return ModelError(f"{self.path} can't be read: {error.strerror or error}")

    def _changed(self, what: str) -> ModelError:
        return ModelError(
            f"{self.path} changed while it was read: {what}; expected the {self.stamp.size} bytes that it "
            "had when it was opened"
        )


class MemoryFile:
    """The bytes of a file, held in memory, with a name for error messages. Implements `ByteSource`."""

    def __init__(self, name: str, data: bytes) -> None:
        self.path = Path(name)
        self.stamp = FileStamp(len(data), 0, 0, 0, 0)
        self._data = data

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of the `size` bytes from position `start` on. Raises ModelError if there are fewer."""
        if start + size > len(self._data):
            raise ModelError(f"{self.path} ends after {len(self._data)} bytes; expected {start + size}")
        return np.frombuffer(self._data, np.uint8, size, start).copy()

    def close(self) -> None:
        """Do nothing; the garbage collector frees the bytes."""


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking: opening a pipe returns at once even if it has no writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class Cursor(io.RawIOBase):
    """A seekable file object over an open `BinaryFile`, for libraries that need one. Closing it leaves the file open.

    Reading more than `budget` bytes in all raises OSError; None is no bound.
    """

    def __init__(self, file: BinaryFile, budget: int | None = None) -> None:
        super().__init__()
        self.budget = budget
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.stamp.size}[whence]
        if base + offset < 0:
            raise OSError("a position before the beginning of the file")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Buffer) -> int:
        target = memoryview(buffer).cast("B")
        size = max(min(len(target), self._file.stamp.size - self._position), 0)
        if self.budget is not None:
            self.budget -= size
            if self.budget < 0:
                raise OSError("reading it takes more bytes than are allowed")
        self._file.read_into(self._position, target[:size])
        self._position += size
        return size
