"""A disk that fails at a chosen operation: once, from then on, or because the process is killed or the power goes.

It stands between `rnn_engine.files` and the system. It counts the operations that change the disk, and leaves the real
files in the state after the fault.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from enum import Enum
from pathlib import Path
from typing import IO

import pytest
from typing_extensions import Buffer


class Crash(BaseException):
    """Raised at the point at which the process would have ended."""


class Fault(Enum):
    """The fault that happens at the chosen operation."""

    ERROR = "one operation fails"
    FULL = "from then on nothing can be written"
    READ_ONLY = "from then on nothing can be changed"
    KILL = "the process is killed"
    POWER = "the power goes: what was not brought to the disk is lost"


class FaultyDisk:
    """A disk that counts operations, and fails at operation `at`; None = never. It lasts as long as `patch`."""

    def __init__(self, patch: pytest.MonkeyPatch, fault: Fault = Fault.ERROR, at: int | None = None) -> None:
        self.operations = 0
        self.failures = 0
        self._fault = fault
        self._at = at
        self._crashed = False
        self._unsynced: dict[int, str | Path] = {}  # inode -> file with content that a power cut loses
        self._before: dict[str, bytes | None] = {}  # file -> its content before renames that a power cut undoes
        patch.setattr("rnn_engine.files._create", self._create)
        self._replace, self._unlink = os.replace, os.unlink
        patch.setattr("os.fsync", self._sync)
        patch.setattr("os.replace", self._replace_noted)
        patch.setattr("os.unlink", self._unlink_noted)

    def step(self, *, writes: bool) -> None:
        """Count an operation. Raises OSError or Crash if the operation does not happen."""
        number, self.operations = self.operations, self.operations + 1
        if self._crashed:
            raise Crash
        if self._at is None or number < self._at:
            return
        match self._fault:
            case Fault.ERROR if number == self._at:
                raise self._failure(errno.EIO)
            case Fault.FULL if writes:
                raise self._failure(errno.ENOSPC)
            case Fault.READ_ONLY:
                raise self._failure(errno.EROFS)
            case Fault.KILL | Fault.POWER:
                self._crashed = True
                if self._fault is Fault.POWER:
                    self._cut_power()
                raise Crash

    def _failure(self, number: int) -> OSError:
        self.failures += 1
        return OSError(number, os.strerror(number))

    def note_write(self, descriptor: int, path: Path) -> None:
        self._unsynced[os.fstat(descriptor).st_ino] = path

    def _create(self, path: Path) -> IO[bytes]:
        self.step(writes=True)
        return io.BufferedWriter(_FaultyFile(self, path))

    def _sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(status.st_mode)
        self.step(writes=not is_folder)
        if is_folder:
            self._before.clear()
        else:
            self._unsynced.pop(status.st_ino, None)

    def _replace_noted(self, source: Path, target: Path) -> None:
        self.step(writes=False)
        self._note_before(target)
        inode = Path(source).stat().st_ino
        if inode in self._unsynced:
            self._unsynced[inode] = target
        self._replace(source, target)

    def _unlink_noted(self, path: Path) -> None:
        self.step(writes=False)
        self._note_before(path)
        self._unlink(path)

    def _note_before(self, path: Path) -> None:
        before = Path(path).read_bytes() if Path(path).exists() else None
        self._before.setdefault(str(path), before)

    def _cut_power(self) -> None:
        for unsynced in self._unsynced.values():
            if Path(unsynced).exists():
                os.truncate(unsynced, Path(unsynced).stat().st_size // 2)
        for path, before in self._before.items():
            if before is not None:
                Path(path).write_bytes(before)
            elif Path(path).exists():
                self._unlink(path)


class _FaultyFile(io.FileIO):
    """A new file that takes a few bytes at a time."""

    def __init__(self, disk: FaultyDisk, path: Path) -> None:
        super().__init__(path, "xb")
        self._disk = disk
        self._path = path

    def write(self, data: Buffer) -> int:
        self._disk.step(writes=True)
        self._disk.note_write(self.fileno(), self._path)
        view = memoryview(data).cast("B")
        return super().write(view[: max(1, len(view) // 2)] if len(view) > 4096 else view)
