"""Named collections of documents, each with its vector: one SQLite file for a collection, and exact search by vectors.

A change is one transaction, so after a crash or on a full disk a collection has all of a change or none of it. The
states after the documents are not kept here: the state cache has them, under the documents' tokens.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self, TypeAlias
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, NotFoundError, StorageError, check_text
from rnn_engine.files import TEMPORARY_SUFFIX, atomic_file, delete_file
from rnn_engine.types import F32
from rnn_engine_states.files.exchange import OwnedFolder
from rnn_engine_states.named.entry import check_name

SUFFIX = ".sqlite"
FOLDER_LOCK = "collections-in-use.lock"

MAX_ID = 256  # characters
MAX_METADATA_BYTES = 1 << 14  # of JSON, of one document
MAX_TEXT_BYTES = 1 << 20  # of one document

_DOCUMENT_BYTES = 128  # that a document takes in the file besides its texts and its vector
_MATRIX_BYTES = 1 << 29  # of the vectors that are held in memory for searches, of all collections together
_FORMAT = 1  # of the files
_SCHEMA = """
    CREATE TABLE facts (json TEXT NOT NULL);
    CREATE TABLE documents (
        row INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, so a search can't return another document
        id TEXT NOT NULL UNIQUE,
        text TEXT NOT NULL,
        metadata TEXT NOT NULL,  -- JSON
        num_tokens INTEGER NOT NULL,
        vector BLOB NOT NULL  -- [D] f32, little-endian, of length 1
    );
"""
_log = logging.getLogger(__name__)

Metadata: TypeAlias = Mapping[str, object]
"""What a client stores with a document: a JSON object."""


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

    def check(self, place: str) -> None:
        """Raise InvalidRequestError, which names the document by `place`, for the first field that is not allowed."""
        if not (0 < len(self.id) <= MAX_ID and self.id.isprintable()):
            raise InvalidRequestError(f"{place}.id", self.id, f"1 to {MAX_ID} printable characters")
        if not self.text.strip():
            raise InvalidRequestError(f"{place}.text", self.text, "a text that is not empty")
        check_text(self.text)
        if (size := len(self.text.encode())) > MAX_TEXT_BYTES:
            raise InvalidRequestError(f"{place}.text", f"{size} bytes", f"at most {MAX_TEXT_BYTES} bytes of UTF-8")
        if (size := len(self.metadata_json(place).encode())) > MAX_METADATA_BYTES:
            allowed = f"an object of at most {MAX_METADATA_BYTES} bytes of JSON"
            raise InvalidRequestError(f"{place}.metadata", f"{size} bytes", allowed)

    def metadata_json(self, place: str = "document") -> str:
        """Return the metadata as JSON. Raises InvalidRequestError if they can't be written as JSON."""
        try:
            text = json.dumps(dict(self.metadata), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            check_text(text)
        except (TypeError, ValueError, RecursionError, InvalidRequestError) as error:
            raise InvalidRequestError(f"{place}.metadata", self.metadata, "a JSON object") from error
        return text

    def num_bytes(self, dimensions: int) -> int:
        """Return about how many bytes the document takes in a file, with a vector of `dimensions` numbers."""
        texts = (self.id, self.text, self.metadata_json())
        return _DOCUMENT_BYTES + sum(len(text.encode()) for text in texts) + 4 * dimensions


@dataclass(frozen=True, slots=True)
class CollectionLimits:
    """The limits on what each owner may store."""

    max_collections: int = 1024
    max_collection_documents: int = 100_000  # of one collection
    max_collection_bytes: int = 1 << 30  # of all collections of one owner


@dataclass(frozen=True, slots=True)
class CollectionFacts:
    """What a collection is: its name, whose it is, and the model that made its vectors. It never changes."""

    id: str
    name: str
    owner: str  # the name of an API key; empty without keys
    model: str  # the fingerprint of the model
    model_name: str
    created: float  # Unix time, seconds


@dataclass(frozen=True, slots=True, eq=False)
class _Vectors:
    """The vectors of one version of a collection."""

    version: int
    rows: NDArray[np.int64]  # [N] of the documents, ascending
    matrix: F32  # [N, D] of length 1

    def nearest(self, vector: F32, count: int) -> list[tuple[int, float]]:
        """Return the rows of the `count` vectors nearest to `vector` [D], with the cosines, the nearest first."""
        if len(self.rows) == 0:
            return []
        cosines = self.matrix @ vector
        best = np.argsort(-cosines, kind="stable")[:count]  # of equal ones, the document that was added first
        return [(int(self.rows[index]), float(np.clip(cosines[index], -1.0, 1.0))) for index in best]


class StoredCollection:
    """One collection of documents, in an SQLite file or in memory. Thread-safe; made by a `DocumentStore`.

    All methods raise NotFoundError after the collection was deleted, and StorageError if the file can't be read or
    written, as on a full disk. A change that raises an error has changed nothing.
    """

    def __init__(self, facts: CollectionFacts, connection: sqlite3.Connection, path: Path | None) -> None:
        """Use the open `connection` to the file at `path`, or to a database in memory if it is None."""
        self.facts = facts
        self.path = path
        self.version = 0  # grows with each change
        self._connection = connection
        self._lock = threading.RLock()
        self._closed: str | None = None  # why it can't be used any more

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        with self._reading() as connection:
            count: int = connection.execute("SELECT count(*) FROM documents").fetchone()[0]
        return count

    @property
    def num_bytes(self) -> int:
        """The bytes of the file that are in use."""
        with self._reading() as connection:
            pages, free, size = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * size)

    def known_ids(self, ids: Iterable[str]) -> list[str]:
        """Return those of `ids` that documents of the collection have, in their order."""
        with self._reading() as connection:
            find = "SELECT 1 FROM documents WHERE id = ?"
            return [each for each in ids if connection.execute(find, (each,)).fetchone() is not None]

    def put(self, documents: Sequence[Document], vectors: F32, *, replace: bool) -> None:
        """Add `documents` with their `vectors` [n, D] of length 1, all or none.

        Documents with the same ids are replaced if `replace` is set; else InvalidRequestError is raised for them.
        """
        with self._changing() as connection:
            if not replace:
                check_new_ids(self.known_ids(document.id for document in documents))
            for document, vector in zip(documents, vectors, strict=True):
                connection.execute("DELETE FROM documents WHERE id = ?", (document.id,))
                connection.execute(
                    "INSERT INTO documents (id, text, metadata, num_tokens, vector) VALUES (?, ?, ?, ?, ?)",
                    (
                        document.id,
                        document.text,
                        document.metadata_json(),
                        document.num_tokens,
                        vector.astype("<f4").tobytes(),
                    ),
                )

    def remove(self, ids: Sequence[str]) -> list[str]:
        """Remove the documents with these ids, all or none, and return the ids that there were."""
        with self._changing() as connection:
            found = self.known_ids(dict.fromkeys(ids))
            connection.executemany("DELETE FROM documents WHERE id = ?", [(each,) for each in found])
        return found

    def get(self, document_id: str) -> Document:
        """Return the document with this id. Raises NotFoundError if there is none."""
        with self._reading() as connection:
            found = connection.execute(f"SELECT {_FIELDS} FROM documents WHERE id = ?", (document_id,)).fetchone()
            if found is None:
                raise self._unknown(document_id)
            return _document(found)

    def page(self, after: str | None, limit: int) -> tuple[list[Document], bool]:
        """Return at most `limit` documents in the order in which they were added, and whether there are more.

        They begin after the document with the id `after`; None = with the first. Raises NotFoundError if there is no
        such document.
        """
        with self._reading() as connection:
            row = 0
            if after is not None:
                found = connection.execute("SELECT row FROM documents WHERE id = ?", (after,)).fetchone()
                if found is None:
                    raise self._unknown(after)
                row = found[0]
            query = f"SELECT {_FIELDS} FROM documents WHERE row > ? ORDER BY row LIMIT ?"
            rows = connection.execute(query, (row, limit + 1)).fetchall()
            return [_document(each) for each in rows[:limit]], len(rows) > limit

    def of_rows(self, rows: Iterable[int]) -> dict[int, Document]:
        """Return the documents in these rows of the table, without those that have been removed meanwhile."""
        query = f"SELECT {_FIELDS} FROM documents WHERE row = ?"
        with self._reading() as connection:
            found = ((row, connection.execute(query, (row,)).fetchone()) for row in rows)
            return {row: _document(each) for row, each in found if each is not None}

    def read_vectors(self, dimensions: int) -> _Vectors:
        """Read the vectors of all documents, of `dimensions` numbers each. Blocks for about a second for 100,000."""
        with self._reading() as connection:
            rows = np.empty(self.num_documents, np.int64)
            matrix = np.empty((len(rows), dimensions), np.float32)
            for index, (row, data) in enumerate(connection.execute("SELECT row, vector FROM documents ORDER BY row")):
                if not isinstance(data, bytes) or len(data) != matrix.itemsize * dimensions:
                    raise self._damaged(f"a vector has not the bytes of {dimensions} numbers")
                rows[index], matrix[index] = row, np.frombuffer(data, "<f4")
            if not np.isfinite(matrix).all():
                raise self._damaged("a vector has a number that is not finite")
            return _Vectors(self.version, rows, matrix)

    def close(self, reason: str) -> None:
        """Close the file; later uses raise NotFoundError with the `reason`, a participle such as "deleted".

        Waits for a change that is being written. Idempotent.
        """
        with self._lock:
            self._closed = reason
            self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed is not None:
                raise NotFoundError(f"collection {self.facts.name!r} was {self._closed} meanwhile")
            try:
                yield self._connection
            except (sqlite3.Error, ValueError) as error:  # ValueError: JSON or a vector is damaged
                raise self._damaged(str(error)) from error

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite ends it by itself after some errors
                    connection.execute("ROLLBACK")
                raise
            self.version += 1

    def _unknown(self, document_id: str) -> NotFoundError:
        return NotFoundError(f"collection {self.facts.name!r} has no document {document_id[:80]!r}")

    def _damaged(self, reason: str) -> StorageError:
        return StorageError(f"the file of collection {self.facts.name!r} can't be read or written: {reason}")


_FIELDS = "id, text, metadata, num_tokens"


def _document(fields: tuple[object, ...]) -> Document:
    """Return the document with these fields. Raises ValueError if they are damaged."""
    match fields:
        case (str(document_id), str(text), str(metadata), int(num_tokens)):
            if isinstance(loaded := json.loads(metadata), dict):
                return Document(document_id, text, loaded, num_tokens)
    raise ValueError("a document has a field of another type")


def check_new_ids(known: Sequence[str]) -> None:
    """Raise InvalidRequestError if any ids of new documents are known already."""
    if known:
        more = f" and {len(known) - 1} more" if len(known) > 1 else ""
        message = (
            f"documents: the collection has a document {known[0]!r}{more} already; delete it first, or set `replace`"
        )
        raise InvalidRequestError("documents", known[0], "new ids, or `replace`", message)


class DocumentStore:
    """The collections of all owners, in a folder or in memory. An owner sees its own alone. Thread-safe."""

    def __init__(self, folder: Path | None = None, limits: CollectionLimits | None = None) -> None:
        """Open the collections in `folder`, which is created if it is missing; None = keep collections in memory.

        A damaged file is left in the folder and logged as a warning. What a crash left unfinished is deleted. Raises
        StateError if the folder can't be used, or if another process uses it.
        """
        self.limits = limits or CollectionLimits()
        self._folder = folder
        self._owned = None if folder is None else OwnedFolder(folder, "folder of collections", FOLDER_LOCK)
        self._lock = threading.RLock()
        self._collections: dict[tuple[str, str], StoredCollection] = {}  # (owner, name) ->
        self._matrices = _Matrices(_MATRIX_BYTES)
        for path in [] if folder is None else sorted(folder.iterdir()):
            if path.suffix == TEMPORARY_SUFFIX and SUFFIX in path.suffixes:
                with suppress(OSError):
                    path.unlink()
            elif path.suffix == SUFFIX and (found := _open_file(path)) is not None:
                self._collections[found.facts.owner, found.facts.name] = found

    @property
    def persistent(self) -> bool:
        """Whether collections outlive the process."""
        return self._folder is not None

    def create(self, owner: str, name: str, model: str, model_name: str) -> StoredCollection:
        """Create an empty collection for vectors of the model with the fingerprint `model`, and return it.

        Raises InvalidRequestError if the name is not valid or in use, or if the owner may have no more.
        """
        check_name(name, "name")
        with self._lock:
            if (owner, name) in self._collections:
                raise InvalidRequestError("name", name, "a name that is free; there is a collection of this name")
            if len(self.of_owner(owner)) >= self.limits.max_collections:
                allowed = f"at most {self.limits.max_collections} collections (max_collections); delete one"
                raise InvalidRequestError("name", name, allowed)
            facts = CollectionFacts(uuid.uuid4().hex, name, owner, model, model_name, time.time())
            path = None if self._folder is None else self._folder / f"{facts.id}{SUFFIX}"
            made = _create(facts, path)
            self._collections[owner, name] = made
        return made

    def of_owner(self, owner: str) -> list[StoredCollection]:
        """Return the owner's collections, ordered by their names."""
        with self._lock:
            return [self._collections[key] for key in sorted(self._collections) if key[0] == owner]

    def get(self, owner: str, name: str) -> StoredCollection:
        """Return the owner's collection of this name. Raises NotFoundError if there is none."""
        with self._lock:
            found = self._collections.get((owner, name))
        if found is None:
            names = ", ".join(each.facts.name for each in self.of_owner(owner)[:10]) or "none"
            raise NotFoundError(f"collection {name[:80]!r} does not exist; there are: {names}")
        return found

    def delete(self, owner: str, name: str) -> None:
        """Delete a collection with all of its documents. Requests that still use it get NotFoundError.

        Raises NotFoundError if there is none of this name, and StorageError if its file can't be deleted.
        """
        with self._lock:
            found = self.get(owner, name)
            found.close("deleted")
            del self._collections[owner, name]
            self._matrices.forget(found)
            if found.path is None:
                return
            try:
                found.path.with_name(f"{found.path.name}-journal").unlink(missing_ok=True)  # a kill may leave one
                delete_file(found.path)
            except OSError as error:
                raise StorageError(f"the file of collection {name!r} can't be deleted: {error.strerror}") from error

    def check_room(self, collection: StoredCollection, documents: Sequence[Document], dimensions: int) -> None:
        """Raise InvalidRequestError if the collection can't take `documents` with vectors of `dimensions` numbers.

        Documents that replace others are counted as if they were new.
        """
        count, most = collection.num_documents, self.limits.max_collection_documents
        if count + len(documents) > most:
            allowed = f"at most {most} documents in a collection (max_collection_documents), and this one has {count}"
            raise InvalidRequestError("documents", len(documents), allowed)
        most = self.limits.max_collection_bytes
        used = sum(each.num_bytes for each in self.of_owner(collection.facts.owner))
        added = sum(document.num_bytes(dimensions) for document in documents)
        if used + added > most:
            allowed = f"at most {most} bytes in all collections (max_collection_bytes), and they have {used}"
            raise InvalidRequestError("documents", f"{added} bytes", allowed)

    def nearest(self, collection: StoredCollection, vector: F32, count: int) -> list[tuple[Document, float]]:
        """Return the `count` documents whose vectors are nearest to `vector` [D] of length 1, with the cosines.

        The nearest comes first. Blocks while the vectors are compared, and read if that was not done before.
        """
        nearest = self._matrices.of(collection, len(vector)).nearest(vector, count)
        found = collection.of_rows(row for row, _ in nearest)
        return [(found[row], cosine) for row, cosine in nearest if row in found]

    def close(self) -> None:
        """Close all files and unlock the folder. Idempotent."""
        with self._lock:
            for collection in self._collections.values():
                collection.close("closed")
            self._collections.clear()
            if self._owned is not None:
                self._owned.release()


class _Matrices:
    """The vectors of the collections that were searched last, within a bound on their bytes. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[StoredCollection, _Vectors] = OrderedDict()  # the one unused for longest first
        self._lock = threading.Lock()

    def of(self, collection: StoredCollection, dimensions: int) -> _Vectors:
        """Return the current vectors of a collection, of `dimensions` numbers each.

        Drop those of other collections if the bound is exceeded.
        """
        with self._lock:
            found = self._held.pop(collection, None)
            if found is None or found.version != collection.version:
                found = collection.read_vectors(dimensions)
            self._held[collection] = found
            while len(self._held) > 1 and sum(each.matrix.nbytes for each in self._held.values()) > self._capacity:
                self._held.popitem(last=False)
            return found

    def forget(self, collection: StoredCollection) -> None:
        """Drop the vectors of a collection that was deleted."""
        with self._lock:
            self._held.pop(collection, None)


# SQLite files. One is made in memory and then written as a whole, so there is never one without its tables.


def _create(facts: CollectionFacts, path: Path | None) -> StoredCollection:
    empty = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    empty.executescript(f"PRAGMA user_version = {_FORMAT}; {_SCHEMA}")
    empty.execute("INSERT INTO facts VALUES (?)", (json.dumps(asdict(facts)),))
    if path is None:
        return StoredCollection(facts, empty, None)
    with closing(empty):
        try:
            with atomic_file(path) as file:
                file.write(empty.serialize())
            return StoredCollection(facts, _connect(path), path)
        except (OSError, sqlite3.Error) as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise StorageError(f"the file of collection {facts.name!r} can't be written: {reason}") from error


def _connect(path: Path) -> sqlite3.Connection:
    """Open an SQLite file. A change that a crash has cut short is undone when it is read first."""
    address = f"file:{quote(str(path.absolute()))}?mode=rw"
    connection = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA synchronous = EXTRA")  # a change is on the disk when it is acknowledged
    connection.execute("PRAGMA trusted_schema = OFF")  # the file may come from elsewhere
    return connection


def _open_file(path: Path) -> StoredCollection | None:
    """Open the collection in a file of an earlier run; None, with a warning in the log, if that is not possible."""
    try:
        connection = _connect(path)
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version != _FORMAT:
            raise ValueError(f"its format is {version}; expected {_FORMAT}")
        [facts] = connection.execute("SELECT json FROM facts").fetchone()
        return StoredCollection(CollectionFacts(**json.loads(facts)), connection, path)
    except (sqlite3.Error, ValueError, TypeError) as error:
        _log.warning("the collection in %s is skipped: %s", path.name, error)
        return None
