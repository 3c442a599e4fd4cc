"""The files of clients: uploaded for jobs, and results of jobs, whole or not at all. Their content is in blobs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias

from pydantic import TypeAdapter

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine.files import TEMPORARY_SUFFIX, atomic_file, delete_file
from rnn_engine_server.core.bodies import storage_errors
from rnn_engine_server.core.tasks import on_thread, run_whole, uninterrupted
from rnn_engine_server.store.owners import Columns, Cursor, Expiry, Page, Room, Table

# The folder of blobs beside the database: what is too large for a row, such as uploads, results and checkpoints.
#
# The name of a blob begins with the id of the thing that has it; an ending after a dot says what it is to it. It is
# written under another name, flushed to the disk and renamed. So after a crash it is there as a whole or not at all.

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


# The files, and their content in blobs.

UploadPurpose: TypeAlias = Literal["batch", "fine-tune"]
"""What an uploaded file is for, under OpenAI's names."""
FilePurpose: TypeAlias = Literal["batch", "batch_output", "fine-tune", "fine-tune-results"]
"""What a file is for: uploaded ones, and those that the server writes."""
Description: TypeAlias = tuple[str, FilePurpose, float | None]
"""The name of a file, what it is for, and after how many seconds it is deleted; None = never."""

FILE_ID: Final = "file-"


def lora_file_id(owner: str, model: str) -> str:
    """Return the id of the file with the LoRA that makes a model's name, MODEL:LORA, for an owner."""
    return f"{FILE_ID}{hashlib.sha256(f'{owner} {model}'.encode()).hexdigest()[:32]}.safetensors"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a file is. It never changes."""

    id: str
    owner: str
    filename: str  # as the client calls it
    purpose: FilePurpose
    num_bytes: int
    sha256: str  # of the content, in hexadecimal digits
    created: float  # Unix time, seconds
    expires: float | None = None  # Unix time, seconds; None = never

    @property
    def columns(self) -> Columns:
        return Columns(self.purpose, "", self.expires, self.num_bytes)


FILES: Final = Table("files", TypeAdapter(StoredFile), "file")
_NOT_HELD: Final = "NOT EXISTS (SELECT 1 FROM held_files WHERE file = id)"


class NewFile:
    """A file that is being written, part by part. Made by `Files.create`; for one task at a time.

    It must be described before the end of the `async with` block.
    """

    def __init__(self, file: IO[bytes], take_room: Callable[[int], None]) -> None:
        self.num_bytes = 0
        self.description: Description | None = None
        self.stored: StoredFile | None = None
        self._file = file
        self._take_room = take_room
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The digest of what has been written."""
        return self._digest.hexdigest()

    def write_now(self, data: bytes | bytearray) -> None:
        """Append `data`, and block meanwhile.

        Raises InvalidRequestError or StorageError if there is no room for it, and OSError if it can't be written.
        """
        self._take_room(len(data))
        self.num_bytes += len(data)
        self._digest.update(data)
        self._file.write(data)

    async def write(self, data: bytes | bytearray) -> None:
        """Do as `write_now` on a thread."""
        await run_whole(partial(self.write_now, data))

    def describe(self, filename: str, purpose: FilePurpose, lifetime: float | None) -> None:
        """Say what the file is. It is deleted after `lifetime` seconds; None = never."""
        self.description = filename, purpose, lifetime


class Files:
    """The files of all owners, in a database and a folder of blobs."""

    def __init__(self, database: Database, blobs: Blobs, room: Room, clock: Callable[[], float]) -> None:
        self.room = room
        self.blobs = blobs
        self.now = clock
        """Returns the Unix time in seconds by which files expire."""
        self._database = database
        self._expiry = Expiry(database, FILES, clock, self.forget, _NOT_HELD)

    @staticmethod
    def new_id() -> str:
        """Return an id for a new file."""
        return f"{FILE_ID}{uuid.uuid4().hex}"

    async def page(self, owner: str | None, cursor: Cursor, purpose: str | None = None) -> Page[StoredFile]:
        """Return a part of the list of an owner's files, perhaps of one purpose. Raises InvalidRequestError."""
        await self._expiry.drop()
        return await self._database.read(lambda db: FILES.page(db, owner, cursor, purpose), owner)

    async def get(self, owner: str | None, file_id: str) -> StoredFile:
        """Return the owner's file with this id. Raises NotFoundError if there is none, or none any more."""
        await self._expiry.drop()
        return await self._database.read(lambda db: FILES.find(db, owner, file_id), owner)

    async def content(self, owner: str | None, file_id: str) -> Path:
        """Return the path of a file's content, which exists until the file is deleted. Raises NotFoundError."""
        stored = await self.get(owner, file_id)

        def find() -> Path:
            with self.blobs.open(stored.id):
                return self.blobs.path(stored.id)

        return await asyncio.to_thread(find)

    def open_content(self, stored: StoredFile) -> AbstractAsyncContextManager[IO[bytes]]:
        """Open a file's content for an `async with` block, in which it can be read even if the file is deleted.

        Raises NotFoundError if it is deleted already, and StorageError.
        """
        return on_thread(self.blobs.open(stored.id))

    @asynccontextmanager
    async def create(self, owner: str, file_id: str | None = None) -> AsyncIterator[NewFile]:
        """Begin a new file, which is stored at the end of the `async with` block, or deleted if that raises an error.

        Its `stored` is what was stored. Raises InvalidRequestError if the owner may have no more files, and
        StorageError if the disk or the room for all files is full.
        """
        file_id = file_id or self.new_id()
        await self._expiry.drop()
        self.room.take(owner, 1, 0)
        new: NewFile | None = None
        try:
            async with on_thread(self.blobs.create(file_id)) as file:
                yield (new := NewFile(file, lambda num_bytes: self.room.take(owner, 0, num_bytes)))
                if new.description is None:
                    raise RuntimeError("a new file was not described")
        except BaseException:
            await self._give_up(owner, file_id, 0 if new is None else new.num_bytes)
            raise
        assert new.description is not None
        await self._keep(new, self._describe(file_id, owner, new.description, new.num_bytes, new.sha256))

    @uninterrupted
    async def _keep(self, new: NewFile, stored: StoredFile) -> None:
        """Write the record of a new file, whose content is written, or delete the content if that fails."""
        try:
            await self._database.write(lambda transaction: self.record(transaction, stored), stored.owner)
        except Exception:
            await self._give_up(stored.owner, stored.id, stored.num_bytes)
            raise
        new.stored = stored

    async def _give_up(self, owner: str, file_id: str, num_bytes: int) -> None:
        """Delete what was written of a file that is not recorded, and return its room."""
        await asyncio.to_thread(self.blobs.delete, file_id)
        self.room.give(owner, 1, num_bytes)

    async def delete(self, owner: str | None, file_id: str) -> None:
        """Delete the owner's file with this id, also on a full disk.

        Raises NotFoundError if there is none, and InvalidRequestError if a job needs it.
        """

        def delete(transaction: Transaction) -> None:
            stored = FILES.find(transaction, owner, file_id)
            query = "SELECT 1 FROM held_files WHERE file = ? LIMIT 1"
            if transaction.execute(query, (file_id,)).fetchone() is not None:
                raise InvalidRequestError("file", file_id, "a file that no unfinished job needs; cancel the job first")
            self.forget(transaction, stored)

        await self._expiry.drop()
        await self._database.write(delete, owner, frees=True)

    # Parts of changes that jobs make, too.

    def hold(self, transaction: Transaction, job_id: str, *file_ids: str) -> None:
        """Keep files from being deleted or expiring until `release` is called for the job."""
        transaction.executemany("INSERT OR IGNORE INTO held_files VALUES (?, ?)", [(each, job_id) for each in file_ids])

    def release(self, transaction: Transaction, job_id: str) -> None:
        """Undo `hold`."""
        transaction.execute("DELETE FROM held_files WHERE job = ?", (job_id,))
        self._expiry.note(0.0)

    def forget(self, transaction: Transaction, stored: StoredFile) -> None:
        """Delete a file, its content after the end of the change."""
        FILES.delete(transaction, stored)
        transaction.after(lambda: self.blobs.delete(stored.id))
        transaction.after(lambda: self.room.give(stored.owner, 1, stored.num_bytes))

    def record(self, transaction: Transaction, stored: StoredFile) -> None:
        """Write the record of a file whose content and room are there."""
        FILES.put(transaction, stored)
        self._expiry.note(stored.expires)

    def adopt(
        self, blob: str, file_id: str, owner: str, filename: str, purpose: FilePurpose, lifetime: float | None
    ) -> StoredFile:
        """Give a blob the name of a file, and return what to record. Blocks. Raises StorageError."""
        num_bytes, sha256 = self.blobs.adopt(file_id, blob)
        return self._describe(file_id, owner, (filename, purpose, lifetime), num_bytes, sha256)

    def _describe(self, file_id: str, owner: str, description: Description, num_bytes: int, sha256: str) -> StoredFile:
        filename, purpose, lifetime = description
        now = self.now()
        expires = None if lifetime is None else now + lifetime
        return StoredFile(file_id, owner, filename, purpose, num_bytes, sha256, now, expires)
