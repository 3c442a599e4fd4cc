"""What the readers and writers of all model file formats share: named tensors, and bytes at positions of a file.

Files are not mapped: a mapping would show what others write into the file, and would end the process if they truncated
it. If another program changes a file meanwhile, ModelError is raised.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from rnn_engine.errors import ModelError
from rnn_engine.quantised import Blocks


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file's size, times and identity, by which a change of its content is noticed."""

    size: int  # bytes
    modified: int  # Unix time, ns
    status_changed: int  # Unix time, ns; also changes with the file's names and rights, and can't be set by hand
    inode: int
    volume: int

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
        now = self._current_stamp()
        if (now.size, now.modified) != (self.stamp.size, self.stamp.modified):
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


MOST_DIMENSIONS: Final = 8
_MOST_BYTES: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The shape of a tensor as its file stores it, and the element type in which it is read.

    Raises ValueError for a shape that no array can have.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    block_type: str | None = None  # the blocks in which a row's numbers are stored; None: stored as `dtype`

    def __post_init__(self) -> None:
        if len(self.shape) > MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {len(self.shape)} dimensions; expected at most {MOST_DIMENSIONS}")
        if prod(max(size, 1) for size in self.shape) * self.dtype.itemsize > _MOST_BYTES:  # numpy refuses (0, 2**63)
            raise ValueError("a tensor is larger than any memory")

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


ALL_ROWS: Final = slice(None)


def span_of_rows(shape: tuple[int, ...], num_bytes: int, rows: slice) -> tuple[int, int, tuple[int, ...]]:
    """Return where rows of a tensor of `num_bytes` begin, in bytes from its start, their bytes and their shape."""
    if not shape:
        return 0, num_bytes, shape
    start, stop, _ = rows.indices(shape[0])
    row_bytes = num_bytes // max(1, shape[0])
    return start * row_bytes, (stop - start) * row_bytes, (stop - start, *shape[1:])


class TensorSource(ABC):
    """Base class of open model files, from which named tensors are read."""

    tensors: Mapping[str, TensorInfo]  # the shape and type of every tensor in the file, under its name there

    def __init__(self, file: ByteSource) -> None:
        """Read from `file`, which `close` closes. The subclass sets `tensors`."""
        self._file = file
        self.stamp = file.stamp  # the file's size and times when it was opened, by which a change of it is noticed

    def reads_rows(self, name: str) -> bool:  # noqa: ARG002
        """Return True if `read` takes no longer for some rows than their share of the whole tensor."""
        return True

    @abstractmethod
    def read(self, name: str, rows: slice = ALL_ROWS) -> NDArray[Any]:
        """Return a copy of some rows of the tensor `name`, which no later change of the file affects.

        A row is an entry of the first dimension. The copy may have any strides.

        May be called from several threads. Raises KeyError for a name that is not in `tensors`. Raises ModelError if
        the bytes are damaged, or if the file was truncated or written to since it was opened. Raises ValueError after
        `close`.
        """

    def read_blocks(self, name: str, rows: slice = ALL_ROWS) -> Blocks | None:  # noqa: ARG002
        """Return a copy of some rows of a quantised matrix in its blocks.

        Returns None for plain numbers and blocks of an unknown format. Raises as `read` does.
        """
        return None

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


# The input of the writers of all file formats: named tensors of known shape and type, each read just before it is
# written.


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor for the writer of a model file: its name, its shape and type, and a function that reads it."""

    name: str
    info: TensorInfo
    read: Callable[[], NDArray[Any]]  # of the shape and type of `info`, or the bytes of its blocks

    def write(self, file: IO[bytes]) -> None:
        """Read the tensor and write its numbers to `file`, the last dimension fastest."""
        file.write(np.ascontiguousarray(self.read()).reshape(-1).view(np.uint8).data)


# Format text from a file for error messages: cut it, make it printable, and list only the first of many items.

_MOST_ITEMS: Final = 6
_MOST_CHARACTERS: Final = 120


def show(text: str) -> str:
    """Return `text` from a file for an error message: cut to 120 characters, and escaped if it is not printable."""
    cut = text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
    return cut if cut.isprintable() else ascii(cut)


def show_all(items: Sequence[str]) -> str:
    """Join the first few of `items`, for an error message, and add the number of the others."""
    shown = "; ".join(show(item) for item in items[:_MOST_ITEMS])
    return shown if len(items) <= _MOST_ITEMS else f"{shown}; and {len(items) - _MOST_ITEMS} more"


def count(items: Sequence[str], noun: str) -> str:
    """Format the number of items with the noun for them: "1 tensor", "2 tensors"."""
    return f"{len(items)} {noun}" if len(items) == 1 else f"{len(items)} {noun}s"
