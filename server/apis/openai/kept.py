"""The conversations and responses that clients can continue or retrieve later: kept in one SQLite file.

What is said is stored once, as *turns*: items that came together, each turn with the one before it. A response or a
conversation is a name for its last turn, so a response that continues another one shares all turns before its own. A
turn is deleted when nothing needs it. States are not stored here: the cache has them while there is room, and requests
continue from those.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Concatenate, Literal, TypeAlias, TypeVar

from aiohttp import web
from pydantic_core import to_json

from rnn_engine.errors import NotFoundError, OverloadedError, StateError, StorageError
from server.apis.openai.response_items import Item, KeptItem, new_item_id
from server.auth.admission import PRINCIPAL
from server.core.bodies import page_ends, query_page
from server.core.kept import KeptUsage
from server.core.settings import Limits
from server.jobs.files import FileStore

FILE = "conversations.sqlite"
EVENTS = ".events"
"""The ending of the name of a file with the events of a response, after the response's id."""

_KEPT_BYTES = 1024  # that a response or a conversation takes beside its texts
_RETRY_SECONDS = 1.0
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
_ITEMS = """
    WITH RECURSIVE chain (number, parent, depth) AS (
        SELECT number, parent, 0 FROM turns WHERE number = ?
        UNION ALL
        SELECT turns.number, turns.parent, depth + 1 FROM turns JOIN chain ON turns.number = chain.parent
    )
    SELECT id, type, fields FROM chain JOIN items ON items.turn = chain.number ORDER BY depth DESC, items.number
"""
"""The items up to a turn."""
_ITEMS_OF_TURN = "SELECT id, type, fields FROM items WHERE turn = ? ORDER BY number"

_OUTPUT_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{4,}")  # of an item: the key of its response, and a number
_log = logging.getLogger(__name__)

T = TypeVar("T")
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


class ConversationStore:
    """The conversations and responses of all owners. An owner sees its own alone.

    To make room, what its owner has not used for longest is dropped. Thread-safe; methods block for the disk, and raise
    StorageError if the file can't be read or written. A change that raises an error has changed nothing. A change
    outlives the process from the moment when its method returns.
    """

    def __init__(self, files: FileStore, limits: Limits) -> None:
        """Open the file in the folder of `files`; without a lasting folder, a temporary one that the system deletes.

        A damaged file is renamed and logged. Raises StateError for a file that a later version has written.
        """
        self._files = files
        self._limits = limits
        self._lock = threading.RLock()
        self._evictions = 0
        self._connection = _connect(files.folder / FILE if files.persistent else None)
        known = {f"{kept.id}{EVENTS}" for kept in self._select("events_bytes IS NOT NULL")}
        for path in files.paths(f"resp_*{EVENTS}"):
            if path.name not in known:
                path.unlink(missing_ok=True)

    @property
    def usage(self) -> KeptUsage:
        """How many conversations and responses there are, and their bytes."""
        with self._reading() as connection:
            [count] = connection.execute("SELECT count(*) FROM kept").fetchone()
            return KeptUsage(count, self._all_bytes(), self._evictions)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._connection.close()

    # Responses. The last turn of a response is its output, and the one before has the items of its request. The last
    # turn of a response that has not ended is that with the items of its request.

    def add_response(
        self,
        owner: str,
        response: Mapping[str, Any],
        given: Sequence[KeptItem],
        before: History,
        conversation_id: str | None,
        *,
        keep: bool,
    ) -> None:
        """Add the items of a request and of its response to a conversation, if one is named, and keep the response.

        `given` are the items of the request, `before` the conversation up to then. Without `keep` the response is not
        kept, and neither is one that is too large by itself. Nothing is added to a conversation that was deleted
        meanwhile.
        """
        output = tuple(map(KeptItem.of, response["output"]))
        with self._changing():
            if conversation_id is not None:
                self._add_answer(owner, conversation_id, (*given, *output))
            if keep:
                made = self._new_response(owner, response)
                if made.num_bytes + _size((*given, *output)) > self._limits.max_conversation_bytes:
                    self._evictions += 1
                    return
                turn = self._add_turn(owner, self._turn_of(owner, before), given)
                self._write(replace(made, turn=self._add_turn(owner, turn, output)))

    def queue_response(
        self,
        owner: str,
        response: Mapping[str, Any],
        given: Sequence[KeptItem],
        before: History,
        request: bytes,
        *,
        with_events: bool,
    ) -> None:
        """Keep a response that has not begun, with the body of its request.

        Raises OverloadedError if the owner may have no more of them.
        """
        most = self._limits.max_key_background
        with self._changing():
            if len(self.unfinished(owner)) >= most:
                message = f"{most} responses of this API key run in the background, the most (max_key_background)"
                raise OverloadedError(message, _RETRY_SECONDS)
            made = replace(
                self._new_response(owner, response), request=request, events_bytes=0 if with_events else None
            )
            turn = self._add_turn(owner, self._turn_of(owner, before), given)
            self._write(replace(made, turn=turn, expires=None))

    def finish_response(
        self, owner: str, response: Mapping[str, Any], conversation_id: str | None, events_bytes: int
    ) -> None:
        """Store how a queued response has ended. If it was deleted meanwhile, nothing is stored."""
        output = tuple(map(KeptItem.of, response["output"]))
        with self._changing():
            old = self._select_one(response["id"])
            if old is None or old.request is None:
                return
            if conversation_id is not None:
                self._add_answer(owner, conversation_id, (*self._items(old.turn, last=True), *output))
            new = self._new_response(owner, response)
            turn = self._add_turn(owner, old.turn, output)
            ended = None if old.events_bytes is None else events_bytes
            self._write(replace(new, created=old.created, turn=turn, events_bytes=ended), old)

    def response(self, owner: str, response_id: str) -> Kept:
        """Return the response with this id. Raises NotFoundError if it is not stored or has another owner."""
        with self._changing():
            return self._find(owner, response_id, "response")

    def response_json(self, owner: str, response_id: str) -> bytes:
        """Return a response as JSON. Raises NotFoundError."""
        with self._changing():
            found = self._find(owner, response_id, "response")
            output = () if found.request is not None else self._items(found.turn, last=True)
            return found.body[:-1] + b',"output":[' + b",".join(item.json for item in output) + b"]}"

    def response_input(self, owner: str, response_id: str) -> Sequence[KeptItem]:
        """Return the items that were new in the request for a response. Raises NotFoundError."""
        with self._changing():
            return self._items(self._input_turn(self._find(owner, response_id, "response")), last=True)

    def before_response(self, owner: str, response_id: str) -> History:
        """Return the conversation before the request for a response. Raises NotFoundError."""
        with self._changing():
            turn = self._input_turn(self._find(owner, response_id, "response"))
            return self._history(self._parent(turn))

    def after_response(self, owner: str, response_id: str) -> History:
        """Return the conversation up to the end of a response. Raises NotFoundError."""
        with self._changing():
            return self._history(self._find(owner, response_id, "response").turn)

    def delete_response(self, owner: str, response_id: str) -> None:
        """Delete the response with this id, but not the responses that continue it. Raises NotFoundError."""
        with self._changing():
            self._delete(self._find(owner, response_id, "response"))

    def unfinished(self, owner: str | None = None) -> list[Kept]:
        """Return the responses of an owner, or of all, that have not ended, the oldest first."""
        if owner is None:
            return self._select("request IS NOT NULL ORDER BY created")
        return self._select("kind = 'response' AND owner = ? AND request IS NOT NULL ORDER BY created", owner)

    def resolve(self, owner: str, items: Sequence[Item]) -> list[KeptItem]:
        """Return a request's items in the form for storing, with the stored item in place of each reference.

        Raises NotFoundError if a reference's item is not stored.
        """
        return [
            self._find_output(owner, item["id"]) if item["type"] == "item_reference" else KeptItem.of(item)
            for item in items
        ]

    def events_path(self, response_id: str) -> Path:
        """Return the path of the file with the events of a response."""
        return self._files.folder / f"{response_id}{EVENTS}"

    # Conversations.

    def create(self, owner: str, items: Sequence[KeptItem], metadata: Mapping[str, str]) -> Kept:
        """Store a new conversation, and return it. Raises InvalidRequestError if it exceeds the limits."""
        now = self._files.now()
        made = Kept(f"conv_{uuid.uuid4().hex}", owner, "conversation", now, now, None, to_json(metadata), None)
        with self._changing():
            self._write(made)
            self._add_items(made, items)
            return made

    def conversation(self, owner: str, conversation_id: str) -> Kept:
        """Return the conversation with this id. Raises NotFoundError if it is not stored or has another owner."""
        with self._changing():
            return self._find(owner, conversation_id, "conversation")

    def conversation_history(self, owner: str, conversation_id: str) -> History:
        """Return what has been said in a conversation. Raises NotFoundError."""
        with self._changing():
            return self._history(self._find(owner, conversation_id, "conversation").turn)

    def item(self, owner: str, conversation_id: str, item_id: str) -> KeptItem:
        """Return an item of a conversation. Raises NotFoundError if the conversation or the item does not exist."""
        history = self.conversation_history(owner, conversation_id)
        return _item_of(history.items, conversation_id, item_id)

    def describe(self, owner: str, conversation_id: str, metadata: Mapping[str, str]) -> Kept:
        """Replace the metadata of a conversation, and return it. Raises NotFoundError."""
        with self._changing():
            found = self._find(owner, conversation_id, "conversation")
            described = replace(found, body=to_json(metadata))
            self._write(described, found)
            return described

    def add(self, owner: str, conversation_id: str, items: Sequence[KeptItem]) -> Sequence[KeptItem]:
        """Append items to a conversation, and return them with their ids.

        Raises NotFoundError if it is not stored, and InvalidRequestError if it becomes too large.
        """
        with self._changing():
            return self._add_items(self._find(owner, conversation_id, "conversation"), items)

    def remove_item(self, owner: str, conversation_id: str, item_id: str) -> Kept:
        """Remove one item from a conversation, and return the conversation.

        Raises NotFoundError if the conversation or the item does not exist.
        """
        with self._changing():
            found = self._find(owner, conversation_id, "conversation")
            items = self._items(found.turn)
            removed = _item_of(items, conversation_id, item_id)
            left = self._add_turn(owner, None, [item for item in items if item is not removed])
            self._write(replace(found, turn=left), found)
            return found

    def delete(self, owner: str, conversation_id: str) -> None:
        """Delete the conversation with this id. Raises NotFoundError if it is not stored or has another owner."""
        with self._changing():
            self._delete(self._find(owner, conversation_id, "conversation"))

    def _add_items(self, conversation: Kept, items: Sequence[KeptItem]) -> Sequence[KeptItem]:
        before = self._items(conversation.turn)
        added = tuple(_with_own_ids(before, items))
        self._limits.check("max_messages", "items", len(before) + len(added))
        self._limits.check("max_conversation_bytes", "items", conversation.num_bytes + _size((*before, *added)))
        self._append(conversation, added)
        return added

    def _add_answer(self, owner: str, conversation_id: str, items: Sequence[KeptItem]) -> None:
        """Append items to a conversation, unless it was deleted. If it becomes too large, it is dropped."""
        found = self._select_one(conversation_id)
        if found is None or found.owner != owner:
            return
        before = self._items(found.turn)
        if found.num_bytes + _size((*before, *items)) > self._limits.max_conversation_bytes:
            self._delete(found)
            self._evictions += 1
        else:
            self._append(found, tuple(_with_own_ids(before, items)))

    def _append(self, conversation: Kept, items: Sequence[KeptItem]) -> None:
        if items:
            turn = self._add_turn(conversation.owner, conversation.turn, items)
            self._write(replace(conversation, turn=turn, used=self._files.now()), conversation)

    # Rows. The methods below run within a change or a reading.

    def _new_response(self, owner: str, response: Mapping[str, Any]) -> Kept:
        body = to_json({name: value for name, value in response.items() if name != "output"})
        now = self._files.now()
        return Kept(response["id"], owner, "response", now, now, now + self._limits.max_response_seconds, body, None)

    def _find(self, owner: str, kept_id: str, kind: Kind) -> Kept:
        """Return a row that its owner asks for, and mark a conversation as used. Raises NotFoundError."""
        found = self._select_one(kept_id)
        if found is None or (found.owner, found.kind) != (owner, kind):
            raise NotFoundError(
                f"{kind} {kept_id[:80]!r} is not kept; it never existed, or it was deleted or dropped to make room for "
                "others"
            )
        if kind == "conversation":  # responses give way by their age
            self._connection.execute("UPDATE kept SET used = ? WHERE id = ?", (self._files.now(), kept_id))
        return found

    def _find_output(self, owner: str, item_id: str) -> KeptItem:
        match = _OUTPUT_ID.fullmatch(item_id)
        if match is not None:
            with suppress(NotFoundError), self._changing():
                found = self._find(owner, f"resp_{match[1]}", "response")
                return _item_of(self._items(found.turn, last=True), found.id, item_id)
        raise NotFoundError(f"no response that is kept has an item {item_id[:80]!r}")

    def _select(self, condition: str, *values: object) -> list[Kept]:
        with self._reading() as connection:
            rows = connection.execute(f"SELECT {_FIELDS} FROM kept WHERE {condition}", values).fetchall()
        return [Kept(*row) for row in rows]

    def _select_one(self, kept_id: str) -> Kept | None:
        return next(iter(self._select("id = ?", kept_id)), None)

    def _write(self, new: Kept, old: Kept | None = None) -> None:
        """Write a row, in place of its `old` form if there is one, and make room for it."""
        marks = ", ".join("?" for _ in fields(Kept))
        self._connection.execute(f"INSERT OR REPLACE INTO kept ({_FIELDS}) VALUES ({marks})", astuple(new))
        self._count(new.owner, new.num_bytes - (0 if old is None else old.num_bytes))
        if old is None or old.turn != new.turn:
            self._use(new.turn)
            self._release(None if old is None else old.turn)
        self._make_room(new.owner)

    def _delete(self, kept: Kept) -> None:
        self._connection.execute("DELETE FROM kept WHERE id = ?", (kept.id,))
        self._count(kept.owner, -kept.num_bytes)
        self._release(kept.turn)
        if kept.events_bytes is not None:
            with suppress(OSError):  # the next start deletes it
                self.events_path(kept.id).unlink(missing_ok=True)

    def _make_room(self, owner: str) -> None:
        """Drop what is beyond the bounds: of the owner, and of those who have most."""
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
        for kept in (found := self._select(condition, owner, *kinds)):
            self._delete(kept)
            self._evictions += 1
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

    def _add_turn(self, owner: str, parent: int | None, items: Sequence[KeptItem]) -> int:
        num_bytes = _size(items)
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

    def _turn_of(self, owner: str, history: History) -> int | None:
        """Return the last turn of a history, which is stored again if it was deleted meanwhile."""
        if not history.items:
            return None
        found = self._connection.execute("SELECT number FROM turns WHERE number = ?", (history.turn,)).fetchone()
        return self._add_turn(owner, None, history.items) if found is None else history.turn

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

    def _parent(self, turn: int | None) -> int | None:
        found = self._connection.execute("SELECT parent FROM turns WHERE number = ?", (turn,)).fetchone()
        return None if found is None else found[0]

    def _input_turn(self, response: Kept) -> int | None:
        return response.turn if response.request is not None else self._parent(response.turn)

    def _history(self, turn: int | None) -> History:
        return History(self._items(turn), turn)

    def _items(self, turn: int | None, *, last: bool = False) -> Sequence[KeptItem]:
        """Return the items up to a turn; with `last` those of the turn alone."""
        query = _ITEMS_OF_TURN if last else _ITEMS
        return tuple(KeptItem.stored(*row) for row in self._connection.execute(query, (turn,)))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise StorageError(f"the conversations can't be read or written: {error}") from error

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Return a context manager for one change, all of which is written or nothing. Expired rows are gone before."""
        with self._lock:
            if expired := self._select("expires <= ?", self._files.now()):
                with self._transaction():
                    for kept in expired:
                        self._delete(kept)
            with self._transaction():
                yield

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


def _size(items: Sequence[KeptItem]) -> int:
    return sum(item.num_bytes for item in items)


def _item_of(items: Sequence[KeptItem], kept_id: str, item_id: str) -> KeptItem:
    for item in items:
        if item.id == item_id:
            return item
    raise NotFoundError(f"{kept_id!r} has no item {item_id[:80]!r}")


def _with_own_ids(before: Sequence[KeptItem], items: Sequence[KeptItem]) -> Iterator[KeptItem]:
    """Yield `items`. Those whose ids an item of `before` or an earlier one has, get new ids."""
    taken = {item.id for item in before}
    for item in items:
        yield replace(item, id=new_item_id(item.type)) if item.id in taken else item
        taken.add(item.id)


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


CONVERSATIONS = web.AppKey("conversations", ConversationStore)
"""The conversations and responses of all API keys."""


async def call_for_path(request: web.Request, method: Callable[Concatenate[str, str, ...], T], *values: object) -> T:
    """Call a method of the store, on a thread, with the request's owner, the id in its path, and `values`."""
    return await asyncio.to_thread(method, request[PRINCIPAL].name, request.match_info["id"], *values)


_MOST_ITEMS = 100  # of a page

PAGE_QUERY = {
    "limit": f"How many items to return: 20 by default, at most {_MOST_ITEMS}.",
    "order": "`desc` (the default) returns the last item first, `asc` the first.",
    "after": "The id of an item: return only the items after it.",
}
"""What `item_page` reads."""


def item_page(request: web.Request, items: Sequence[KeptItem]) -> bytes:
    """Return the page of `items` that the query parameters select, as JSON of a list object.

    Raises InvalidRequestError.
    """
    page, has_more = query_page(request, {item.id: item for item in items}, 20, _MOST_ITEMS)
    return item_list(page, has_more=has_more)


def item_list(items: Sequence[KeptItem], *, has_more: bool = False) -> bytes:
    """Return a conversation's items as JSON, in the form of OpenAI's list object."""
    data = b",".join(item.json for item in items)
    return b'{"object":"list","data":[' + data + b"]," + to_json(page_ends(items, has_more=has_more))[1:]
