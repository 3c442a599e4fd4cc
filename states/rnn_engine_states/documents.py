"""Named collections of documents, each with its vector, in one database of all owners.

A change is one transaction, so after a crash or on a full disk a collection has all of a change or none of it. Methods
with a `connection` or a `transaction` are to be called by the store's `database`, on a thread of its own. The states
after the documents are not kept here: the state cache has them, under the documents' tokens.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from sqlite3 import Connection
from typing import Final, NamedTuple, Self, TypeAlias

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import InvalidRequestError, NotFoundError, StorageError, check_text
from rnn_engine.types import F32
from rnn_engine_states.files.exchange import OwnedFolder
from rnn_engine_states.named.entry import check_name
from rnn_engine_states.vectors import Matrices

FILE: Final = "collections.sqlite"
FOLDER_LOCK: Final = "collections-in-use.lock"
_FORMER: Final = ("?" * 32 + ".sqlite",)  # of versions before 0.2.0, a file for each collection

MAX_ID: Final = 256  # characters
MAX_METADATA_BYTES: Final = 1 << 14  # of JSON, of one document
MAX_TEXT_BYTES: Final = 1 << 20  # of one document

_DOCUMENT_BYTES = 128  # that a document takes in the file besides texts and vector; its id is there twice
_PAGE_BYTES = 1 << 20  # of the texts of a page, unless one document is larger
_PART_BYTES = 1 << 20  # of the documents that one change removes, unless one is larger: a full disk has room for it
_PART = 1000  # ids or documents that one change looks at to remove them

AnyConnection: TypeAlias = Connection | Transaction
Metadata: TypeAlias = Mapping[str, object]
"""What a client stores with a document: a JSON object."""


class NewDocument(NamedTuple):
    """What is stored of a document besides its vector."""

    id: str
    num_tokens: int
    num_bytes: int  # about what it takes in the file, with its vector
    metadata: str  # JSON
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text with an id that is unique in its collection, and what the client stores with it."""

    id: str
    text: str
    metadata: Metadata = field(default_factory=dict)
    num_tokens: int = 0  # of the text

    @classmethod
    def parse(cls, value: object, place: str) -> Self:
        """Return the document that a client gives as a text, or as an object with `text` and maybe `id` and `metadata`.

        Without an id it gets a random one. Raises InvalidRequestError, which names the document by `place`.
        """
        match {"text": value} if isinstance(value, str) else value:
            case {"text": str(text), **rest} if rest.keys() <= {"id", "metadata"}:
                document_id, metadata = rest.get("id"), rest.get("metadata")
                if not isinstance(document_id, str | None):
                    raise InvalidRequestError(f"{place}.id", document_id, "a text, or null for a random one")
                if not isinstance(metadata, Mapping | None):
                    raise InvalidRequestError(f"{place}.metadata", metadata, "an object, or null")
                return cls(uuid.uuid4().hex if document_id is None else document_id, text, metadata or {})
        allowed = 'a text, or an object such as {"text": "...", "id": "...", "metadata": {}}'
        raise InvalidRequestError(place, value, allowed)

    def prepare(self, place: str, dimensions: int) -> NewDocument:
        """Return what to store of a document called `place`. Raises InvalidRequestError for the first wrong field."""
        if not (0 < len(self.id) <= MAX_ID and self.id.isprintable()):
            raise InvalidRequestError(f"{place}.id", self.id, f"1 to {MAX_ID} printable characters")
        if not self.text.strip():
            raise InvalidRequestError(f"{place}.text", self.text, "a text that is not empty")
        check_text(self.text)
        if (size := len(self.text.encode())) > MAX_TEXT_BYTES:
            raise InvalidRequestError(f"{place}.text", f"{size} bytes", f"at most {MAX_TEXT_BYTES} bytes of UTF-8")
        try:
            metadata = json.dumps(dict(self.metadata), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            check_text(metadata)
        except (TypeError, ValueError, RecursionError, InvalidRequestError) as error:
            raise InvalidRequestError(f"{place}.metadata", self.metadata, "a JSON object") from error
        if (size := len(metadata.encode())) > MAX_METADATA_BYTES:
            allowed = f"an object of at most {MAX_METADATA_BYTES} bytes of JSON"
            raise InvalidRequestError(f"{place}.metadata", f"{size} bytes", allowed)
        size = 2 * len(self.id.encode()) + len(metadata.encode()) + len(self.text.encode()) + 4 * dimensions
        return NewDocument(self.id, self.num_tokens, _DOCUMENT_BYTES + size, metadata, self.text)


class Row(NamedTuple):
    """A document in the table, without its texts."""

    row: int
    num_tokens: int
    num_bytes: int  # about what it takes in the file without its vector


@dataclass(frozen=True, slots=True)
class CollectionLimits:
    """The limits on what each owner may store, and all together."""

    max_collections: int = 1024
    max_collection_documents: int = 100_000  # of one collection
    max_collection_bytes: int = 1 << 30  # of all collections of one owner
    max_all_collection_bytes: int = 1 << 32  # of all owners


@dataclass(frozen=True, slots=True)
class StoredCollection:
    """A collection of documents as it was at one moment: `now` returns its present form.

    All methods raise NotFoundError after the collection was deleted. They are for a thread of the database.
    """

    number: int  # no other collection ever has it
    id: str
    owner: str  # the name of an API key; empty without keys
    name: str
    model: str  # the fingerprint of the model that made its vectors
    model_name: str
    created: float  # Unix time, seconds
    num_documents: int
    num_bytes: int  # of its documents, about
    changes: int  # how often documents were added or removed

    def now(self, connection: AnyConnection) -> StoredCollection:
        for found in _select(connection, "number = ?", self.number):
            return found
        raise NotFoundError(f"collection {self.name!r} was deleted meanwhile")

    def remove(self, transaction: Transaction, ids: Sequence[str]) -> tuple[list[str], Sequence[str]]:
        """Remove as many documents as one change may; return the ids that there were, and those left."""
        self.now(transaction)
        removed, rows, size, end = dict[str, None](), list[int](), 0, min(len(ids), _PART)
        for index in range(end):
            query = "SELECT row, num_bytes FROM documents WHERE collection = ? AND id = ?"
            found = transaction.execute(query, (self.number, ids[index])).fetchone()
            if found is None or ids[index] in removed:
                continue
            if rows and size + found[1] > _PART_BYTES:
                end = index
                break
            removed[ids[index]] = None
            rows.append(found[0])
            size += found[1]
        if rows:
            _delete(transaction, rows)
            self.grow(transaction, -len(rows), -size)
        return list(removed), ids[end:]

    def get(self, connection: Connection, document_id: str) -> Document:
        """Return the document with this id. Raises NotFoundError if there is none."""
        [found] = self.read(connection, [self._row(connection, document_id).row]).values()
        return found

    def page(self, connection: Connection, after: str | None, limit: int) -> tuple[list[Row], bool]:
        """Return at most `limit` documents in the order in which they were added, and whether there are more.

        They are fewer if they are large. They begin after the document with the id `after`; None = with the first.
        Raises NotFoundError if there is no such document.
        """
        self.now(connection)
        start = 0 if after is None else self._row(connection, after).row
        query = f"SELECT {_ROW} FROM documents WHERE collection = ? AND row > ? ORDER BY row LIMIT ?"
        rows = list(map(Row._make, connection.execute(query, (self.number, start, limit + 1))))
        found = _first(rows[:limit], _PAGE_BYTES)
        return found, len(found) < len(rows)

    def read(self, connection: Connection, rows: Iterable[int]) -> dict[int, Document]:
        """Return the documents of these rows, without those that have been removed meanwhile."""
        self.now(connection)
        found = dict[int, Document]()
        query = "SELECT id, text, metadata, num_tokens FROM documents WHERE row = ?"
        for row in rows:
            if (stored := connection.execute(query, (row,)).fetchone()) is not None:
                try:
                    found[row] = _document(stored)
                except ValueError as error:
                    raise self.damaged(error) from error
        return found

    def damaged(self, reason: ValueError) -> StorageError:
        return StorageError(f"collection {self.name!r} can't be read: {reason}")

    def unknown(self, document_id: str) -> NotFoundError:
        return NotFoundError(f"collection {self.name!r} has no document {document_id[:80]!r}")

    def _row(self, connection: Connection, document_id: str) -> Row:
        self.now(connection)
        query = f"SELECT {_ROW} FROM documents WHERE collection = ? AND id = ?"
        if (found := connection.execute(query, (self.number, document_id)).fetchone()) is None:
            raise self.unknown(document_id)
        return Row._make(found)

    def grow(self, transaction: Transaction, count: int, size: int) -> None:
        """Count documents and bytes that are added or, if negative, removed."""
        transaction.execute(
            "UPDATE collections SET num_documents = num_documents + ?, num_bytes = num_bytes + ?, "
            "changes = changes + 1 WHERE number = ?",
            (count, size, self.number),
        )


def _document(stored: tuple[object, ...]) -> Document:
    """Return the document with these fields. Raises ValueError if they are damaged."""
    match stored:
        case (str(document_id), str(text), str(metadata), int(num_tokens)):
            if isinstance(loaded := json.loads(metadata), dict):
                return Document(document_id, text, loaded, num_tokens)
    raise ValueError("a document has a field of another type")


_FIELDS = ", ".join(each.name for each in fields(StoredCollection))
_ROW = "row, num_tokens, num_bytes - length(vector)"


def _select(connection: AnyConnection, condition: str, *values: object) -> list[StoredCollection]:
    query = f"SELECT {_FIELDS} FROM collections WHERE {condition}"
    return [StoredCollection(*found) for found in connection.execute(query, values)]


def _delete(transaction: Transaction, rows: Iterable[int]) -> None:
    transaction.executemany("DELETE FROM documents WHERE row = ?", [(row,) for row in rows])


def _first(rows: list[Row], most: int) -> list[Row]:
    """Return the first rows that have at most so many bytes together, but at least one."""
    size = 0
    for index, row in enumerate(rows):
        size += row.num_bytes
        if index and size > most:
            return rows[:index]
    return rows


class DocumentStore:
    """The collections of all owners, in a folder or in memory. An owner sees its own alone.

    Where a method takes an `owner`, None stands for all. Methods with a `connection` or a `transaction` are for a
    thread of the `database`.
    """

    def __init__(self, folder: Path | None = None, limits: CollectionLimits | None = None) -> None:
        """Open the collections in `folder`, which is created if it is missing; None = keep collections in memory.

        What can be read of a damaged file is kept. Blocks. Raises StateError if the folder can't be used, if another
        process uses it, or if a former version has written it, and StorageError if it has no room.
        """
        self.limits = limits or CollectionLimits()
        self._owned = None if folder is None else OwnedFolder(folder, "folder of collections", FOLDER_LOCK, _FORMER)
        find_path = None if folder is None else lambda: folder / FILE
        what = "the store of collections"
        schema = (resources.files("rnn_engine_states") / "documents.sql").read_text("utf-8")
        self.database = Database(what, find_path, [schema], lasting=folder is not None)
        self._matrices = Matrices(self.database)
        if folder is not None:
            try:
                self.database.write_now(self._recover)
            except BaseException:
                self.close()
                raise
            self._sweep_soon()

    @property
    def persistent(self) -> bool:
        return self._owned is not None

    def create(self, transaction: Transaction, owner: str, name: str, model: str, model_name: str) -> StoredCollection:
        """Create an empty collection for vectors of the model with the fingerprint `model`, and return it.

        Raises InvalidRequestError if the name is not valid or in use, or if the owner may have no more.
        """
        check_name(name, "name")
        if _select(transaction, "owner = ? AND name = ?", owner, name):
            raise InvalidRequestError("name", name, "a name that is free; there is a collection of this name")
        [count] = transaction.execute("SELECT count(*) FROM collections WHERE owner = ?", (owner,)).fetchone()
        if count >= self.limits.max_collections:
            allowed = f"at most {self.limits.max_collections} collections (max_collections); delete one"
            raise InvalidRequestError("name", name, allowed)
        made = uuid.uuid4().hex, owner, name, model, model_name, time.time()
        columns = "id, owner, name, model, model_name, created"
        transaction.execute(f"INSERT INTO collections ({columns}) VALUES (?, ?, ?, ?, ?, ?)", made)
        return self.find(transaction, owner, name)

    def check_new(
        self, connection: AnyConnection, collection: StoredCollection, new: Sequence[NewDocument], *, replace: bool
    ) -> tuple[list[int], int, int]:
        """Return the rows that new documents replace, and how many documents and bytes the collection would gain.

        Raises InvalidRequestError for known ids unless `replace` is set, and if the owner may not store so much.
        Raises StorageError if all owners together may not, and NotFoundError if the collection was deleted.
        """
        limits, there = self.limits, collection.now(connection).num_documents
        query = "SELECT row, num_bytes, id FROM documents WHERE collection = ? AND id = ?"
        ids = ((collection.number, document.id) for document in new)
        known = [found for each in ids if (found := connection.execute(query, each).fetchone()) is not None]
        if known and not replace:
            first, more = known[0][2], f" and {len(known) - 1} more" if len(known) > 1 else ""
            message = f"documents: the collection has a document {first!r}{more} already"
            message += "; delete it first, or set `replace`"
            raise InvalidRequestError("documents", first, "new ids, or `replace`", message)
        count = len(new) - len(known)
        size = sum(document.num_bytes for document in new) - sum(num_bytes for _, num_bytes, _ in known)
        if count > 0 and there + count > (most := limits.max_collection_documents):
            allowed = f"at most {most} documents in a collection (max_collection_documents), and this one has {there}"
            raise InvalidRequestError("documents", len(new), allowed)
        sums = "SELECT sum(num_bytes * (owner = ?)), sum(num_bytes) FROM collections"
        used, of_all = connection.execute(sums, (collection.owner,)).fetchone()
        if size > 0 and used + size > (most := limits.max_collection_bytes):
            allowed = f"at most {most} bytes in all collections of a key (max_collection_bytes), and they have {used}"
            raise InvalidRequestError("documents", f"{size} bytes", allowed)
        if size > 0 and of_all + size > (most := limits.max_all_collection_bytes):
            raise StorageError(f"the collections of all clients take {most} bytes, the most (max_all_collection_bytes)")
        return [row for row, _, _ in known], count, size

    def put(
        self,
        transaction: Transaction,
        collection: StoredCollection,
        documents: Sequence[NewDocument],
        vectors: F32,
        *,
        replace: bool,
    ) -> None:
        """Add `documents` with their `vectors` [n, D] of length 1. Raises as `check_new` does."""
        known, count, size = self.check_new(transaction, collection, documents, replace=replace)
        _delete(transaction, known)
        pairs = zip(documents, vectors, strict=True)
        columns = "collection, vector, id, num_tokens, num_bytes, metadata, text"
        transaction.executemany(
            f"INSERT INTO documents ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(collection.number, vector.astype("<f4").tobytes(), *document) for document, vector in pairs],
        )
        collection.grow(transaction, count, size)

    def page(
        self, connection: Connection, owner: str | None, after: str | None, limit: int
    ) -> tuple[list[StoredCollection], bool]:
        """Return up to `limit` of an owner's collections after an id, and True if more. Raises InvalidRequestError."""
        condition = "?1 IS NULL" if owner is None else "owner = ?1"
        if after is not None and not _select(connection, f"{condition} AND id = ?2", owner, after):
            raise InvalidRequestError("after", after, "the id of an item in this list")
        condition += " AND (?2 IS NULL OR (owner, name) > (SELECT owner, name FROM collections WHERE id = ?2))"
        found = _select(connection, f"{condition} ORDER BY owner, name LIMIT ?3", owner, after, limit + 1)
        return found[:limit], len(found) > limit

    def find(self, connection: AnyConnection, owner: str, name: str) -> StoredCollection:
        """Return the owner's collection of this name. Raises NotFoundError if there is none."""
        for found in _select(connection, "owner = ? AND name = ?", owner, name):
            return found
        others = _select(connection, "owner = ? ORDER BY name LIMIT 10", owner)
        names = ", ".join(each.name for each in others) or "none"
        raise NotFoundError(f"collection {name[:80]!r} does not exist; there are: {names}")

    def delete(self, transaction: Transaction, owner: str, name: str) -> None:
        """Delete a collection, its documents later in parts. Raises NotFoundError if there is none."""
        found = self.find(transaction, owner, name)
        transaction.execute("DELETE FROM collections WHERE number = ?", (found.number,))
        transaction.execute("INSERT INTO deleted VALUES (?)", (found.number,))
        transaction.after(lambda: self._matrices.forget(found.number))
        transaction.after(self._sweep_soon)

    def nearest(self, collection: StoredCollection, vector: F32, count: int) -> list[tuple[Row, float]]:
        """Return the `count` documents whose vectors are nearest to `vector` [D] of length 1, with the cosines.

        The nearest comes first. Blocks while the vectors are compared, and those that are new are read. Raises
        NotFoundError if the collection was deleted, and StorageError for damaged vectors.
        """
        now = self.database.read_now(collection.now)
        try:
            nearest = self._matrices.nearest(now.number, now.changes, vector, count)
        except ValueError as error:
            raise collection.damaged(error) from error

        def read(connection: Connection) -> list[tuple[Row, float]]:
            query = f"SELECT {_ROW} FROM documents WHERE row = ?"
            found = ((connection.execute(query, (row,)).fetchone(), cosine) for row, cosine in nearest)
            return [(Row._make(row), cosine) for row, cosine in found if row is not None]  # or it was removed meanwhile

        return self.database.read_now(read)

    def usage(self) -> tuple[int, int, int, int, int]:
        """Return the number of all documents and their bytes, and what `Matrices.usage` returns. Blocks."""
        query = "SELECT coalesce(sum(num_documents), 0), coalesce(sum(num_bytes), 0) FROM collections"
        count, size = self.database.read_now(lambda connection: connection.execute(query).fetchone())
        return count, size, *self._matrices.usage

    def close(self) -> None:
        """Close the file and unlock the folder. Blocks. Idempotent."""
        self.database.close()
        if self._owned is not None:
            self._owned.release()

    def _recover(self, transaction: Transaction) -> None:
        """Make counts and documents agree if the file was damaged."""
        if self.database.was_damaged:
            count = "(SELECT count(*), coalesce(sum(num_bytes), 0) FROM documents WHERE collection = number)"
            transaction.execute(f"UPDATE collections SET changes = changes + 1, (num_documents, num_bytes) = {count}")
            lost = "SELECT DISTINCT collection FROM documents WHERE collection NOT IN (SELECT number FROM collections)"
            transaction.execute(f"INSERT OR IGNORE INTO deleted {lost}")

    def _sweep_soon(self) -> None:
        self.database.write_soon(self._sweep, frees=True)

    def _sweep(self, transaction: Transaction) -> None:
        """Delete some documents of collections that were deleted; after that, go on while there are more."""
        found = transaction.execute("SELECT collection FROM deleted LIMIT 1").fetchone()
        if found is None:
            return
        query = f"SELECT row, num_tokens, num_bytes FROM documents WHERE collection = ? ORDER BY row DESC LIMIT {_PART}"
        rows = _first(list(map(Row._make, transaction.execute(query, found))), _PART_BYTES)
        _delete(transaction, [each.row for each in rows])
        if not rows:
            transaction.execute("DELETE FROM deleted WHERE collection = ?", found)
        transaction.after(self._sweep_soon)
