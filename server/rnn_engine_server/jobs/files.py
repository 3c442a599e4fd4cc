"""The files of clients: kept in one folder, whole or not at all, within bounds for each API key and for all together.

A file is its content, `ID.data`, and a record of what it is, `ID.json`. It exists only if both do. So after a crash at
any moment, what lacks one of the two is deleted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError, StorageError
from rnn_engine.files import TEMPORARY_SUFFIX, atomic_file, delete_file, read_record, write_record
from rnn_engine_server.core.bodies import storage_errors
from rnn_engine_server.core.settings import Limits
from rnn_engine_states.files.exchange import OwnedFolder

T = TypeVar("T")

FOLDER_LOCK = "jobs-in-use.lock"
TEMPORARY_FOLDER = "rnn-engine-jobs-"  # the beginning of the names of temporary folders of jobs

UploadPurpose: TypeAlias = Literal["batch", "fine-tune"]
"""What an uploaded file is for, under OpenAI's names."""
FilePurpose: TypeAlias = Literal["batch", "batch_output", "fine-tune", "fine-tune-results"]
"""What a file is for: uploaded ones, and those that the server writes."""

_DATA, _RECORD = ".data", ".json"
_ID = "file-"
_FAILURE = "the file can't be written to the folder of jobs"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a file is. It never changes."""

    id: str
    owner: str  # the name of an API key; empty without keys
    filename: str  # as the client calls it
    purpose: FilePurpose
    num_bytes: int
    sha256: str  # of the content, in hexadecimal digits
    created: float  # Unix time, seconds
    expires: float | None = None  # Unix time, seconds; None = never

    def has_expired(self, now: float) -> bool:
        """Return True if the file must be deleted at the time `now`."""
        return self.expires is not None and self.expires <= now


_STORED = TypeAdapter(StoredFile)


class NewFile:
    """A file that is being written, part by part. Made by `FileStore.create`; for one thread at a time.

    It must be described before the end of the `with` block.
    """

    def __init__(self, file: IO[bytes], make_room: Callable[[int], None]) -> None:
        self.num_bytes = 0
        self.description: tuple[str, FilePurpose, float | None] | None = None
        self.stored: StoredFile | None = None
        self._file = file
        self._make_room = make_room
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The digest of what has been written."""
        return self._digest.hexdigest()

    def write(self, data: bytes | bytearray) -> None:
        """Append `data` to the file.

        Raises InvalidRequestError or StorageError if there is no room for it, and OSError if it can't be written.
        """
        self._make_room(len(data))
        self.num_bytes += len(data)
        self._digest.update(data)
        self._file.write(data)

    def describe(self, filename: str, purpose: FilePurpose, lifetime: float | None) -> None:
        """Say what the file is. It is deleted after `lifetime` seconds; None = never."""
        self.description = filename, purpose, lifetime


class FileStore:
    """The files of all owners in one folder. An owner sees its own alone. Thread-safe; methods block for the disk."""

    def __init__(
        self, folder: Path | None = None, limits: Limits | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the files in `folder`, which is created if it is missing, and delete what crashes left unfinished.

        None is a temporary folder, which is made when it is first needed, and deleted when the store is closed. When it
        is made, those that killed processes have left are deleted. A file with a damaged record is left alone and
        logged. Raises StateError if the folder can't be used, or if another process uses it.
        """
        self.limits = limits or Limits()
        self._folder = folder
        self._owned = None if folder is None else _own(folder)
        self._delete_folder: Callable[[], object] | None = None
        self._clock = clock
        self._lock = threading.RLock()
        self._unfinished: dict[str, tuple[str, int]] = {}  # id -> owner and bytes so far
        self._held: Counter[str] = Counter()  # id -> how many jobs need it
        self._next_expiry = float("inf")  # no file expires before that time
        self._files: dict[str, StoredFile] = {}  # by id
        self._counts = Counter[str]()  # files of each owner, unfinished ones included
        self._sizes = Counter[str]()  # bytes of each owner, likewise
        for stored in sorted(self._recover(), key=lambda each: each.created):
            self._add(stored)
            self._count(stored.owner, 1, stored.num_bytes)

    @property
    def folder(self) -> Path:
        """The folder of the files. Raises StorageError if a temporary one can't be made."""
        with self._lock:
            if self._folder is None:
                for lock in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_FOLDER}*/{FOLDER_LOCK}"):
                    delete_abandoned(lock.parent)
                with storage_errors(_FAILURE):
                    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_FOLDER))
                self._owned = _own(folder)
                self._folder = folder
                self._delete_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            return self._folder

    @property
    def persistent(self) -> bool:
        """Whether files outlive the process."""
        return self._owned is not None and self._delete_folder is None

    def paths(self, pattern: str) -> list[Path]:
        """Return the paths in the folder whose names match `pattern`, ordered by name."""
        return [] if self._folder is None else sorted(self._folder.glob(pattern))

    def of_owner(self, owner: str) -> list[StoredFile]:
        """Return the owner's files, the oldest first."""
        with self._lock:
            self._drop_expired()
            return [stored for stored in self._files.values() if stored.owner == owner]

    def get(self, owner: str, file_id: str) -> StoredFile:
        """Return the owner's file with this id. Raises NotFoundError if there is none, or none any more."""
        with self._lock:
            self._drop_expired()
            stored = self._files.get(file_id)
        if stored is None or stored.owner != owner:
            raise NotFoundError(f"there is no file {file_id[:80]!r}")
        return stored

    def content_path(self, stored: StoredFile) -> Path:
        """Return the path of a file's content, which exists until the file is deleted or has expired."""
        return self.folder / f"{stored.id}{_DATA}"

    def open_content(self, stored: StoredFile) -> IO[bytes]:
        """Open a file's content, which can then be read even if the file is deleted.

        Raises NotFoundError if it is deleted already, and StorageError.
        """
        with storage_errors("the file can't be read"):
            try:
                return self.content_path(stored).open("rb")
            except FileNotFoundError:
                raise NotFoundError(f"there is no file {stored.id!r}") from None

    @contextmanager
    def create(self, owner: str) -> Iterator[NewFile]:
        """Begin a new file, which is stored at the end of the `with` block, or deleted if the block raises an error.

        Its `stored` is what was stored. Raises InvalidRequestError if the owner may have no more files, and
        StorageError if the disk or the room for all files is full.
        """
        file_id = self.new_id()
        path = self.folder / f"{file_id}{_DATA}"
        self._begin(owner, file_id)
        is_stored = False
        try:
            with storage_errors(_FAILURE):
                with atomic_file(path) as file:
                    new = NewFile(file, lambda num_bytes: self._grow(file_id, num_bytes))
                    yield new
                    if new.description is None:
                        raise RuntimeError("a new file was not described")
                try:
                    stored = self._record(file_id, owner, *new.description, new.num_bytes, new.sha256)
                except OSError:
                    with suppress(OSError):
                        path.unlink()
                    raise
            with self._lock:
                new.stored = stored
                self._add(stored)
            is_stored = True
        finally:
            with self._lock:
                _, num_bytes = self._unfinished.pop(file_id)
                if not is_stored:
                    self._count(owner, -1, -num_bytes)

    @contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Return a context manager that yields the path for a file called `name`, which is deleted at its end.

        If the process is killed, the file is deleted at the next start. Raises StorageError if it can't be made.
        """
        folder = self.folder / f"{self.new_id()}{TEMPORARY_SUFFIX}"
        with storage_errors(_FAILURE):
            folder.mkdir()
        try:
            yield folder / name
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def delete(self, owner: str, file_id: str) -> None:
        """Delete the owner's file with this id.

        Raises NotFoundError if there is none, InvalidRequestError if a job needs it, and StorageError if it can't be
        deleted.
        """
        stored = self.get(owner, file_id)
        with self._lock, storage_errors(_FAILURE):
            if self._held[file_id]:
                raise InvalidRequestError("file", file_id, "a file that no unfinished job needs; cancel the job first")
            self._delete(stored)

    def hold(self, file_id: str) -> None:
        """Keep a file from being deleted or expiring until `release` is called as often."""
        with self._lock:
            self._held[file_id] += 1

    def release(self, file_id: str) -> None:
        """Undo one call of `hold`."""
        with self._lock:
            self._held[file_id] -= 1

    def adopt(
        self, path: Path, file_id: str, owner: str, filename: str, purpose: FilePurpose, lifetime: float | None
    ) -> None:
        """Make the file at `path`, in the same folder, a stored file with an id from `new_id`, whatever its size.

        It is deleted after `lifetime` seconds; None = never. A second call after a crash completes the first. Raises
        StorageError.
        """
        if self.has(file_id):
            return
        with storage_errors(_FAILURE):
            with path.open("rb+") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            stored = self._record(file_id, owner, filename, purpose, lifetime, path.stat().st_size, digest)
            path.replace(self.content_path(stored))
        with self._lock:
            self._add(stored)
            self._count(owner, 1, stored.num_bytes)

    def has(self, file_id: str) -> bool:
        """Return True if there is a file with this id, of any owner."""
        with self._lock:
            return file_id in self._files

    def usage(self) -> tuple[int, int]:
        """Return the number of files of all owners, and their bytes. Unfinished ones count, too."""
        with self._lock:
            return self._counts.total(), self._sizes.total()

    @staticmethod
    def new_id() -> str:
        """Return an id for a new file."""
        return f"{_ID}{uuid.uuid4().hex}"

    def now(self) -> float:
        """Return the Unix time in seconds by which files expire."""
        return self._clock()

    def close(self) -> None:
        """Unlock the folder, and delete it if it is temporary. Idempotent."""
        if self._owned is not None:
            self._owned.release()
        if self._delete_folder is not None:
            self._delete_folder()

    def _begin(self, owner: str, file_id: str) -> None:
        most = self.limits.max_key_files
        with self._lock:
            self._drop_expired()
            if self._counts[owner] >= most:
                raise InvalidRequestError(
                    "file", f"file {most + 1}", f"at most {most} files of an API key (max_key_files); delete some"
                )
            self._unfinished[file_id] = owner, 0
            self._count(owner, 1, 0)

    def _grow(self, file_id: str, num_bytes: int) -> None:
        """Count `num_bytes` more of an unfinished file. Raises InvalidRequestError or StorageError without room."""
        with self._lock:
            owner, written = self._unfinished[file_id]
            most = self.limits.max_key_file_bytes
            if self._sizes[owner] + num_bytes > most:
                allowed = f"at most {most} bytes in all files of an API key (max_key_file_bytes); delete some"
                raise InvalidRequestError("file", f"{written + num_bytes} bytes", allowed)
            most = self.limits.max_all_file_bytes
            if self._sizes.total() + num_bytes > most:
                raise StorageError(f"the files of all clients take {most} bytes, the most (max_all_file_bytes)")
            self._unfinished[file_id] = owner, written + num_bytes
            self._count(owner, 0, num_bytes)

    def _count(self, owner: str, num_files: int, num_bytes: int) -> None:
        """Add to the numbers of files and bytes of an owner. The lock must be held."""
        self._counts[owner] += num_files
        self._sizes[owner] += num_bytes
        if not self._counts[owner]:
            del self._counts[owner], self._sizes[owner]

    def _add(self, stored: StoredFile) -> None:
        """Add a file that begins to exist, and that was counted. The lock must be held."""
        self._files[stored.id] = stored
        if stored.expires is not None:
            self._next_expiry = min(self._next_expiry, stored.expires)

    def _drop_expired(self) -> None:
        """Delete the files whose time has passed. The lock must be held."""
        now = self._clock()
        if now < self._next_expiry:
            return
        for stored in [each for each in self._files.values() if each.has_expired(now) and not self._held[each.id]]:
            try:
                self._delete(stored)
            except OSError as error:
                _log.warning("the expired file %s can't be deleted: %s", stored.id, error.strerror)
        self._next_expiry = min(
            (each.expires for each in self._files.values() if each.expires is not None), default=float("inf")
        )

    def _delete(self, stored: StoredFile) -> None:
        """Delete a file, the record first: without it the file does not exist. The lock must be held."""
        if stored.id in self._files:
            delete_file(self._record_path(stored.id))
            del self._files[stored.id]
            self._count(stored.owner, -1, -stored.num_bytes)
            with suppress(OSError):  # else the next start deletes it
                self.content_path(stored).unlink(missing_ok=True)

    def _record(
        self,
        file_id: str,
        owner: str,
        filename: str,
        purpose: FilePurpose,
        lifetime: float | None,
        num_bytes: int,
        sha256: str,
    ) -> StoredFile:
        """Write the record of a file that begins to exist now, and return it. Raises OSError."""
        now = self._clock()
        expires = None if lifetime is None else now + lifetime
        stored = StoredFile(file_id, owner, filename, purpose, num_bytes, sha256, now, expires)
        write_record(self._record_path(file_id), asdict(stored))
        return stored

    def _record_path(self, file_id: str) -> Path:
        return self.folder / f"{file_id}{_RECORD}"

    def _recover(self) -> Iterator[StoredFile]:
        """Yield the files of the folder that are whole. Delete parts of others."""
        names = {path.name for path in self.paths(f"{_ID}*")}
        for name in sorted(names):
            path = self.folder / name
            pair = {_DATA: path.with_suffix(_RECORD).name, _RECORD: path.with_suffix(_DATA).name}.get(path.suffix)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix == TEMPORARY_SUFFIX or (pair is not None and pair not in names):
                with suppress(OSError):
                    path.unlink()
            elif path.suffix == _RECORD and (stored := read_known(_STORED, path)) is not None:
                yield stored


def _own(folder: Path) -> OwnedFolder:
    return OwnedFolder(folder, "folder of jobs", FOLDER_LOCK)


def delete_abandoned(folder: Path) -> bool:
    """Delete a folder of jobs that no process uses. Return False if one does, or if the folder can't be used."""
    try:
        _own(folder).release()
    except StateError:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def read_known(kind: TypeAdapter[T], path: Path) -> T | None:
    """Read a record of a `kind` in the folder of jobs. Return None, after logging it, if the record is damaged."""
    try:
        return kind.validate_python(read_record(path))
    except ValidationError:
        _log.warning("%s is left out: it is damaged", path)
        return None
