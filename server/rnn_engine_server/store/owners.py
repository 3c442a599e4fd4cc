"""What all kinds of stored things share: who owns them, lists by cursor, deletion, expiry, and how much each owner has.

Each kind has a table of the same columns. The owner of a thing is the name of an API key, empty without keys. Where a
function takes an `owner`, None stands for all: so an operator finds what any key has made, also one that is removed.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import InvalidRequestError, NotFoundError, StorageError
from rnn_engine_server.core.settings import Limits

_MOST_EXPIRED: Final = 100  # things that one change deletes
_log = logging.getLogger(__name__)


class Columns(NamedTuple):
    """What is known of a thing without its record."""

    label: str  # what lists may ask for, such as the purpose of a file
    status: str = ""
    expires: float | None = None  # Unix time, seconds
    num_bytes: int = 0


class Thing(Protocol):
    """What all stored things have. They never change: a change makes another with the same id."""

    @property
    def id(self) -> str: ...

    @property
    def owner(self) -> str: ...

    @property
    def columns(self) -> Columns: ...


T = TypeVar("T", bound=Thing)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Which part of a list is wanted: at most `limit` things, after the one with the id `after`."""

    limit: int
    after: str | None = None
    ascending: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Things in the order of a list, and True if more come after them."""

    items: list[Item]
    has_more: bool


class Table(Generic[T]):
    """The things of one kind. Its methods need a connection, and must be called on a thread of the database."""

    def __init__(self, name: str, kind: TypeAdapter[T], what: str, why_gone: str = "") -> None:
        """Describe the table `name`; messages call one of its things `what`, and say why one may be gone."""
        self.name = name
        self.what = what
        self._kind = kind
        self._why_gone = why_gone

    def put(self, transaction: Transaction, thing: T) -> None:
        """Write a new thing, or another form of one."""
        record = self._kind.dump_json(thing).decode()
        transaction.execute(
            f"""INSERT INTO {self.name} (id, owner, label, status, expires, num_bytes, record, digest)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET label = excluded.label,
                status = excluded.status, expires = excluded.expires, num_bytes = excluded.num_bytes,
                record = excluded.record, digest = excluded.digest""",
            (thing.id, thing.owner, *thing.columns, record, _digest(thing.owner, record)),
        )

    def delete(self, transaction: Transaction, thing: T) -> None:
        transaction.execute(f"DELETE FROM {self.name} WHERE id = ?", (thing.id,))

    def find(self, connection: sqlite3.Connection | Transaction, owner: str | None, thing_id: str) -> T:
        """Return the thing with this id. Raises NotFoundError if the owner, or nobody, has it."""
        for thing in self.select(connection, "id = ?", thing_id):
            if owner in (None, thing.owner):
                return thing
        raise NotFoundError(f"there is no {self.what} {thing_id[:80]!r}{self._why_gone}")

    def page(
        self,
        connection: sqlite3.Connection,
        owner: str | None,
        cursor: Cursor,
        label: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Page[T]:
        """Return a part of the list of an owner's things, those with a label and some metadata.

        Raises InvalidRequestError for a cursor that is not the id of one of them.
        """
        condition, values = "TRUE", list[object]()
        for column, wanted in (("owner", owner), ("label", label)):
            if wanted is not None:
                condition += f" AND {column} = ?"
                values.append(wanted)
        for name, value in (metadata or {}).items():
            condition += " AND EXISTS (SELECT 1 FROM json_each(record, '$.metadata') WHERE key = ? AND value = ?)"
            values += [name, value]
        if cursor.after is not None:
            query = f"SELECT number FROM {self.name} WHERE id = ? AND {condition}"
            if (found := connection.execute(query, (cursor.after, *values)).fetchone()) is None:
                raise InvalidRequestError("after", cursor.after, "the id of an item in this list")
            condition += f" AND number {'>' if cursor.ascending else '<'} ?"
            values.append(found[0])
        order = "ASC" if cursor.ascending else "DESC"
        items = list(self.select(connection, f"{condition} ORDER BY number {order} LIMIT ?", *values, cursor.limit + 1))
        return Page(items[: cursor.limit], len(items) > cursor.limit)

    def select(self, connection: sqlite3.Connection | Transaction, condition: str, *values: object) -> Iterator[T]:
        """Yield the things for which an SQL condition holds. A damaged record is logged and left out."""
        query = f"SELECT id, owner, record, digest FROM {self.name} WHERE {condition}"
        for thing_id, owner, record, digest in connection.execute(query, values):
            try:
                if digest != _digest(owner, record):
                    raise ValueError(f"its digest is not {digest}")
                yield self._kind.validate_json(record)
            except (ValueError, ValidationError) as error:
                _log.warning("the record of %s %s is left out, since it is damaged: %s", self.what, thing_id, error)

    def count(self, connection: sqlite3.Connection | Transaction, owner: str) -> int:
        [number] = connection.execute(f"SELECT count(*) FROM {self.name} WHERE owner = ?", (owner,)).fetchone()
        return int(number)

    def statuses(self, connection: sqlite3.Connection) -> Counter[str]:
        """Return how many things are in each status."""
        return Counter(dict(connection.execute(f"SELECT status, count(*) FROM {self.name} GROUP BY status").fetchall()))


class Expiry(Generic[T]):
    """Deletes the things of a table whose time has passed."""

    def __init__(
        self,
        database: Database,
        table: Table[T],
        clock: Callable[[], float],
        forget: Callable[[Transaction, T], None],
        condition: str = "TRUE",
    ) -> None:
        """Delete by `forget` what expires by the `clock`, if an SQL `condition` holds."""
        self._database = database
        self._table = table
        self._clock = clock
        self._forget = forget
        self._condition = condition
        self._next = 0.0  # nothing expires before that time

    def note(self, expires: float | None) -> None:
        """Note that something expires at a time, or may expire from now on (0)."""
        if expires is not None:
            self._next = min(self._next, expires)

    async def drop(self) -> None:
        """Delete what has expired, a few things at a time. What can't be deleted is logged."""
        now = self._clock()
        query = f"SELECT min(expires) FROM {self._table.name} WHERE expires > ?"

        def drop(transaction: Transaction) -> bool:
            condition = f"expires <= ? AND {self._condition} LIMIT {_MOST_EXPIRED}"
            expired = list(self._table.select(transaction, condition, now))
            for thing in expired:
                self._forget(transaction, thing)
            if len(expired) < _MOST_EXPIRED:
                [found] = transaction.execute(query, (now,)).fetchone()
                following = float("inf") if found is None else float(found)
                transaction.after(lambda: setattr(self, "_next", following))
            return bool(expired)

        try:
            while now >= self._next and await self._database.write(drop, frees=True):
                pass
        except StorageError as error:
            _log.warning("what has expired can't be deleted: %s", error)


def _digest(owner: str, record: str) -> int:
    return zlib.crc32(json.dumps([owner, record]).encode())


def ended_in(follows: Mapping[Any, Sequence[str]]) -> str:
    """Return the states that none follows, as a list of SQL."""
    return ", ".join(f"'{status}'" for status, following in follows.items() if not following)


class Room:
    """How many files and bytes each owner has, with those that are being written. Thread-safe.

    Room is taken before anything is written, so a bound is never passed, however many clients write at once.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._files = Counter[str]()
        self._bytes = Counter[str]()

    @property
    def total(self) -> tuple[int, int]:
        """The files and the bytes of all owners."""
        with self._lock:
            return self._files.total(), self._bytes.total()

    def take(self, owner: str, num_files: int, num_bytes: int) -> None:
        """Take room for an owner.

        Raises InvalidRequestError if the owner may have no more, and StorageError if all together may not.
        """
        limits = self._limits
        with self._lock:
            if num_files and (found := self._files[owner] + num_files) > limits.max_key_files:
                allowed = f"at most {limits.max_key_files} files of an API key (max_key_files); delete some"
                raise InvalidRequestError("file", f"file {found}", allowed)
            if num_bytes and (found := self._bytes[owner] + num_bytes) > limits.max_key_file_bytes:
                most = limits.max_key_file_bytes
                allowed = f"at most {most} bytes in all files of an API key (max_key_file_bytes); delete some"
                raise InvalidRequestError("file", f"{found} bytes", allowed)
            if num_bytes and self._bytes.total() + num_bytes > limits.max_all_file_bytes:
                most = limits.max_all_file_bytes
                raise StorageError(f"the files of all clients take {most} bytes, the most (max_all_file_bytes)")
            self._add(owner, num_files, num_bytes)

    def give(self, owner: str, num_files: int, num_bytes: int) -> None:
        """Give room back; negative numbers take it, whatever the bounds are."""
        with self._lock:
            self._add(owner, -num_files, -num_bytes)

    def _add(self, owner: str, num_files: int, num_bytes: int) -> None:
        self._files[owner] += num_files
        self._bytes[owner] += num_bytes
        if not self._files[owner] and not self._bytes[owner]:
            del self._files[owner], self._bytes[owner]
