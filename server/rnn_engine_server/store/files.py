"""The files of clients: uploaded for jobs, and results of jobs, whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias

from pydantic import TypeAdapter

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.core.bodies import on_thread, run_whole
from rnn_engine_server.core.streams import uninterrupted
from rnn_engine_server.store.blobs import Blobs
from rnn_engine_server.store.owners import Columns, Cursor, Expiry, Page, Room, Table

UploadPurpose: TypeAlias = Literal["batch", "fine-tune"]
"""What an uploaded file is for, under OpenAI's names."""
FilePurpose: TypeAlias = Literal["batch", "batch_output", "fine-tune", "fine-tune-results"]
"""What a file is for: uploaded ones, and those that the server writes."""

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
        self.description: tuple[str, FilePurpose, float | None] | None = None
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
        is_whole = False  # then `_keep` decides about its room
        try:
            async with on_thread(self.blobs.create(file_id)) as file:
                yield (new := NewFile(file, lambda num_bytes: self.room.take(owner, 0, num_bytes)))
                if new.description is None:
                    raise RuntimeError("a new file was not described")
            assert new.description is not None
            is_whole = True
            await self._keep(new, self._describe(file_id, owner, *new.description, new.num_bytes, new.sha256))
        finally:
            if not is_whole:
                await asyncio.to_thread(self.blobs.delete, file_id)
                self.room.give(owner, 1, 0 if new is None else new.num_bytes)

    @uninterrupted
    async def _keep(self, new: NewFile, stored: StoredFile) -> None:
        """Write the record of a new file, whose content is written, or delete the content if that fails."""
        try:
            await self._database.write(lambda transaction: self.record(transaction, stored), stored.owner)
        except Exception:
            await asyncio.to_thread(self.blobs.delete, stored.id)
            self.room.give(stored.owner, 1, stored.num_bytes)
            raise
        new.stored = stored

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
        return self._describe(file_id, owner, filename, purpose, lifetime, num_bytes, sha256)

    def _describe(
        self,
        file_id: str,
        owner: str,
        filename: str,
        purpose: FilePurpose,
        lifetime: float | None,
        num_bytes: int,
        sha256: str,
    ) -> StoredFile:
        now = self.now()
        expires = None if lifetime is None else now + lifetime
        return StoredFile(file_id, owner, filename, purpose, num_bytes, sha256, now, expires)
