"""The SQLite file of conversations and responses.

What is said is stored once, as *turns*: items that came together, each turn with the one before it. A response or a
conversation is a row that names its last turn, so a response that continues another one shares all turns before its
own. A turn is deleted when nothing needs it.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Literal, TypeAlias

from rnn_engine.database import Reserve
from rnn_engine.errors import NotFoundError, StateError, StorageError
from rnn_engine_server.apis.openai.response_items import KeptItem
from rnn_engine_server.core.kept import KeptUsage
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.store.folder import Store

FILE = "conversations.sqlite"
EVENTS = ".events"
"""The ending of the name of a file with the events of a response, after the response's id."""

_KEPT_BYTES = 1024  # that a response or a conversation takes beside its texts
_RESERVE_BYTES = 8 << 20  # that a deletion may need on a full disk, with the write-ahead log moved to the file before
_FORMAT = 1  # of the file
_SCHEMA = """
    CREATE TABLE turns (
        number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again
        owner TEXT NOT NULL,
        parent INTEGER,  -- the turn before; NULL = a conversation begins with this one
        uses INTEGER NOT NULL,  -- how many later turns, responses and conversations need it
        num_bytes INTEGER NOT NULL
    );
    CREATE TABLE items (
        number INTEGER PRIMARY KEY,  -- ascending within a turn
        turn INTEGER NOT NULL,
        id TEXT NOT NULL,
        type TEXT NOT NULL,
        fields BLOB NOT NULL  -- JSON of all but the id
    );
    CREATE INDEX items_of_turn ON items (turn);
    CREATE TABLE kept (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        kind TEXT NOT NULL,
        created REAL NOT NULL,
        used REAL NOT NULL,
        expires REAL,
        body BLOB NOT NULL,
        turn INTEGER,
        request BLOB,
        events_bytes INTEGER
    );
    CREATE INDEX kept_by_use ON kept (owner, kind, used);
    CREATE INDEX kept_by_expiry ON kept (expires) WHERE expires IS NOT NULL;
    CREATE TABLE owners (name TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL);
"""
_CHAIN = """
    WITH RECURSIVE chain (number, parent, num_bytes, depth) AS (
        SELECT number, parent, num_bytes, 0 FROM turns WHERE number = ?
        UNION ALL
        SELECT turns.number, turns.parent, turns.num_bytes, depth + 1
        FROM turns JOIN chain ON turns.number = chain.parent
    )
"""
"""The turns up to one of them. A query follows."""
_ITEMS = f"""{_CHAIN}
    SELECT id, type, fields FROM chain JOIN items ON items.turn = chain.number ORDER BY depth DESC, items.number
"""
"""The items up to a turn."""
_ITEMS_OF_TURN = "SELECT id, type, fields FROM items WHERE turn = ? ORDER BY number"

_log = logging.getLogger(__name__)

Kind: TypeAlias = Literal["response", "conversation"]


@dataclass(frozen=True, slots=True)
class History:
    """What has been said in a conversation up to some moment."""

    items: Sequence[KeptItem] = ()
    turn: int | None = None  # the last one in the store; None = it is not stored


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored response or conversation at one moment."""

    id: str
    owner: str  # the name of an API key; empty without keys
    kind: Kind
    created: float  # Unix time, seconds, like the next
    used: float
    expires: float | None
    body: bytes  # JSON: of a response all but its output, of a conversation its metadata
    turn: int | None  # the last one
    request: bytes | None = None  # the body of the request for a response that has not ended
    events_bytes: int | None = None  # of the file of its events; None = it has none

    @property
    def num_bytes(self) -> int:
        """The bytes that it takes besides its turns."""
        return _KEPT_BYTES + len(self.body) + len(self.request or b"") + (self.events_bytes or 0)


_FIELDS = ", ".join(field.name for field in fields(Kept))


class KeptFile:
    """The rows and turns of all owners. Thread-safe.

    All methods but `usage` and `close` must be called in a `with` block of `changing`.
    """

    def __init__(self, files: Store, limits: Limits) -> None:
        """Open the file in the folder of `files`; without a lasting folder, a temporary one that the system deletes.

        A damaged file is renamed and logged. Raises StateError for a file that a later version has written.
        """
        self.evictions = 0
        self._files = files
        self._limits = limits
        self._lock = threading.RLock()
        self._used: dict[str, float] = {}  # conversation -> when it was used last, which the next change writes
        self._connection = _connect(files.folder / FILE if files.persistent else None)
        self._reserve = Reserve(files.folder / FILE, _RESERVE_BYTES) if files.persistent else None
        known = {f"{kept.id}{EVENTS}" for kept in self.select("events_bytes IS NOT NULL")}
        for path in files.paths(f"resp_*{EVENTS}"):
            if path.name not in known:
                path.unlink(missing_ok=True)

    @property
    def usage(self) -> KeptUsage:
        """How many rows there are, and the bytes of everything."""
        with self._reading() as connection:
            [count] = connection.execute("SELECT count(*) FROM kept").fetchone()
            return KeptUsage(count, self._all_bytes(), self.evictions)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._connection.close()

    def events_path(self, response_id: str) -> Path:
        """Return the path of the file with the events of a response."""
        return self._files.folder / f"{response_id}{EVENTS}"

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise StorageError(f"the conversations can't be read or written: {error}") from error

    @contextmanager
    def changing(self, *, frees: bool = False) -> Iterator[None]:
        """Return a context manager for one change, all of which is written or nothing. Expired rows are gone before.

        A change that only reads, or one that `frees` room, is made also on a full disk.
        """
        with self._lock:
            expired = self.select("expires <= ?", self._files.now())
            reserve = self._reserve if expired or frees else None
            if reserve is not None and _free_bytes(reserve.path) < reserve.num_bytes:
                reserve.drop()
                self._empty_log()
            if expired:
                with self._transaction():
                    for kept in expired:
                        self.delete(kept)
            with self._transaction():
                yield
            if reserve is not None and not reserve.path.exists():
                self._empty_log()
                reserve.lay()

    def _empty_log(self) -> None:
        """Move changes from the write-ahead log to the file, so that the log gives its room back."""
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite ends it by itself after some errors
                    connection.execute("ROLLBACK")
                raise

    # Rows: the responses and conversations, each with its last turn.

    def find(self, owner: str, kept_id: str, kind: Kind) -> Kept:
        """Return a row that its owner asks for, and mark a conversation as used. Raises NotFoundError."""
        found = self.select_one(kept_id)
        if found is None or (found.owner, found.kind) != (owner, kind):
            raise NotFoundError(
                f"{kind} {kept_id[:80]!r} is not kept; it never existed, or it was deleted or dropped to make room for "
                "others"
            )
        if kind == "conversation":  # responses give way by their age
            self._used[kept_id] = self._files.now()
        return found

    def select(self, condition: str, *values: object) -> list[Kept]:
        with self._reading() as connection:
            rows = connection.execute(f"SELECT {_FIELDS} FROM kept WHERE {condition}", values).fetchall()
        return [Kept(*row) for row in rows]

    def select_one(self, kept_id: str) -> Kept | None:
        return next(iter(self.select("id = ?", kept_id)), None)

    def ids(self, owner: str, kind: Kind) -> list[str]:
        """Return the ids of an owner's rows of one kind, the oldest first."""
        query = "SELECT id FROM kept WHERE owner = ? AND kind = ? ORDER BY created, id"
        return [kept_id for (kept_id,) in self._connection.execute(query, (owner, kind))]

    def write(self, new: Kept, old: Kept | None = None) -> None:
        """Write a row, in place of its `old` form if there is one, and make room for it."""
        marks = ", ".join("?" for _ in fields(Kept))
        self._connection.execute(f"INSERT OR REPLACE INTO kept ({_FIELDS}) VALUES ({marks})", astuple(new))
        self._count(new.owner, new.num_bytes - (0 if old is None else old.num_bytes))
        if old is None or old.turn != new.turn:
            self._use(new.turn)
            self._release(None if old is None else old.turn)
        self._make_room(new.owner)

    def delete(self, kept: Kept) -> None:
        self._connection.execute("DELETE FROM kept WHERE id = ?", (kept.id,))
        self._count(kept.owner, -kept.num_bytes)
        self._release(kept.turn)
        if kept.events_bytes is not None:
            with suppress(OSError):  # the next start deletes it
                self.events_path(kept.id).unlink(missing_ok=True)

    def _make_room(self, owner: str) -> None:
        """Drop what is beyond the bounds: of the owner, and of those who have most."""
        used = [(when, kept_id, when) for kept_id, when in self._used.items()]
        self._connection.executemany("UPDATE kept SET used = ? WHERE id = ? AND used < ?", used)
        self._used.clear()
        counts: tuple[tuple[Kind, int], ...] = (
            ("response", self._limits.max_responses),
            ("conversation", self._limits.max_conversations),
        )
        for kind, most in counts:
            while self._number(owner, kind) > most and self._evict(owner, (kind,)):
                pass
        while self._bytes_of(owner) > self._limits.max_conversation_bytes and self._evict(owner):
            pass
        while self._all_bytes() > self._limits.max_all_conversation_bytes and any(map(self._evict, self._owners())):
            pass

    def _evict(self, owner: str, kinds: Sequence[Kind] = ("response", "conversation")) -> bool:
        """Drop what an owner has not used for longest, unless it has not ended. Return False if there is nothing."""
        marks = ", ".join("?" for _ in kinds)
        condition = f"owner = ? AND kind IN ({marks}) AND request IS NULL ORDER BY used LIMIT 1"
        for kept in (found := self.select(condition, owner, *kinds)):
            self.delete(kept)
            self.evictions += 1
        return bool(found)

    def _number(self, owner: str, kind: Kind) -> int:
        query = "SELECT count(*) FROM kept WHERE owner = ? AND kind = ?"
        return int(self._connection.execute(query, (owner, kind)).fetchone()[0])

    def _owners(self) -> list[str]:
        """Return all owners, that with the most bytes first."""
        return [name for (name,) in self._connection.execute("SELECT name FROM owners ORDER BY num_bytes DESC")]

    def _bytes_of(self, owner: str) -> int:
        found = self._connection.execute("SELECT num_bytes FROM owners WHERE name = ?", (owner,)).fetchone()
        return 0 if found is None else int(found[0])

    def _all_bytes(self) -> int:
        return int(self._connection.execute("SELECT coalesce(sum(num_bytes), 0) FROM owners").fetchone()[0])

    def _count(self, owner: str, num_bytes: int) -> None:
        self._connection.execute(
            "INSERT INTO owners VALUES (?1, ?2) ON CONFLICT DO UPDATE SET num_bytes = num_bytes + ?2",
            (owner, num_bytes),
        )

    # Turns.

    def add_turn(self, owner: str, parent: int | None, items: Sequence[KeptItem]) -> int:
        num_bytes = total_bytes(items)
        row = (owner, parent, num_bytes)
        insert = "INSERT INTO turns (owner, parent, uses, num_bytes) VALUES (?, ?, 0, ?)"
        number = self._connection.execute(insert, row).lastrowid
        assert number is not None
        self._connection.executemany(
            "INSERT INTO items (turn, id, type, fields) VALUES (?, ?, ?, ?)",
            [(number, item.id, item.type, item.fields) for item in items],
        )
        self._use(parent)
        self._count(owner, num_bytes)
        return number

    def turn_of(self, owner: str, history: History) -> int | None:
        """Return the last turn of a history, which is stored again if it was deleted meanwhile."""
        if not history.items:
            return None
        found = self._connection.execute("SELECT number FROM turns WHERE number = ?", (history.turn,)).fetchone()
        return self.add_turn(owner, None, history.items) if found is None else history.turn

    def _use(self, turn: int | None) -> None:
        self._connection.execute("UPDATE turns SET uses = uses + 1 WHERE number = ?", (turn,))

    def _release(self, turn: int | None) -> None:
        """End one use of a turn. If nothing needs it any more, delete it and end its use of the turn before."""
        while turn is not None:
            query = "UPDATE turns SET uses = uses - 1 WHERE number = ? RETURNING owner, parent, uses, num_bytes"
            [(owner, parent, uses, num_bytes)] = self._connection.execute(query, (turn,)).fetchall()
            if uses > 0:
                return
            self._connection.execute("DELETE FROM items WHERE turn = ?", (turn,))
            self._connection.execute("DELETE FROM turns WHERE number = ?", (turn,))
            self._count(owner, -num_bytes)
            turn = parent

    def parent(self, turn: int | None) -> int | None:
        found = self._connection.execute("SELECT parent FROM turns WHERE number = ?", (turn,)).fetchone()
        return None if found is None else found[0]

    def history_bytes(self, turn: int | None) -> int:
        """Return the bytes of all items up to a turn."""
        query = f"{_CHAIN} SELECT coalesce(sum(num_bytes), 0) FROM chain"
        return int(self._connection.execute(query, (turn,)).fetchone()[0])

    def history(self, turn: int | None) -> History:
        return History(self.items(turn), turn)

    def items(self, turn: int | None, *, last: bool = False) -> Sequence[KeptItem]:
        """Return the items up to a turn; with `last` those of the turn alone."""
        query = _ITEMS_OF_TURN if last else _ITEMS
        return tuple(KeptItem.stored(*row) for row in self._connection.execute(query, (turn,)))


def total_bytes(items: Sequence[KeptItem]) -> int:
    """Return the bytes of some items."""
    return sum(item.num_bytes for item in items)


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path.parent).free


def _connect(path: Path | None) -> sqlite3.Connection:
    """Open the file at `path`, or a temporary one for None. A damaged file is renamed, and a new one is made.

    Raises StateError for a file that can't be opened, or that a later version has written.
    """
    try:
        return _open(path)
    except sqlite3.OperationalError as error:  # such as a full disk
        raise StateError(f"{path}: {error}; expected a file that can be written, or none") from error
    except sqlite3.DatabaseError as error:
        assert path is not None
        _log.warning("%s is left out, and renamed to %s.damaged: %s", path, path.name, error)
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            with suppress(FileNotFoundError):
                (path.parent / name).rename(path.parent / f"{name}.damaged")
        return _open(path)


def _open(path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect("" if path is None else path, check_same_thread=False, isolation_level=None)
    try:
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version > _FORMAT:
            raise StateError(f"{path}: its format is {version}, of a later version; expected at most {_FORMAT}")
        connection.execute("PRAGMA journal_mode = WAL")  # a change outlives the process without waiting for the disk
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA trusted_schema = OFF")  # the file may come from elsewhere
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        if version == 0:
            connection.executescript(f"BEGIN; PRAGMA user_version = {_FORMAT}; {_SCHEMA} COMMIT;")
        [[found]] = connection.execute("PRAGMA quick_check(1)").fetchall()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
    except BaseException:
        connection.close()
        raise
    return connection
