"""What is said in conversations and responses: items in turns.

A turn has items that came together, and the number of the turn before it. So what continues a conversation or a
response shares all turns up to there. A turn that nothing needs any more is deleted piece by piece, however large.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, Self, TypeAlias

from pydantic_core import from_json, to_json

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import InvalidRequestError, StorageError
from rnn_engine_server.core.call import parsed_bytes
from rnn_engine_server.store.owners import Cursor, Page

Item: TypeAlias = dict[str, Any]

_PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_ITEM_BYTES: Final = 128  # that an item takes beside its texts
_PIECE_BYTES: Final = 2 << 20  # that are read or deleted at a time, unless one item has more
_PIECE_ITEMS: Final = 1000
_NO_END: Final = 2**62

_CHAIN: Final = """
    WITH RECURSIVE chain (number, parent, num_items, num_bytes, place) AS (
        SELECT number, parent, num_items, num_bytes, 1 FROM turns WHERE number = ?1
        UNION ALL
        SELECT turns.number, turns.parent, turns.num_items, turns.num_bytes, place + 1
        FROM chain JOIN turns ON turns.number = chain.parent WHERE place < ?2
    )
"""
"""The last `?2` turns up to the turn `?1`. A query follows."""
_IN_CHAIN: Final = "FROM chain JOIN items ON items.turn = chain.number"
_NUM_BYTES: Final = f"{_ITEM_BYTES} + length(CAST(id AS BLOB)) + length(fields)"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item of a conversation in the form for storing: its fields as JSON, so that its size is known."""

    id: str
    type: str
    fields: bytes  # a JSON object of all but the id

    @classmethod
    def of(cls, item: Item) -> Self:
        return cls(item["id"], item["type"], to_json({name: value for name, value in item.items() if name != "id"}))

    @property
    def num_loaded(self) -> int:
        """About how many bytes the item takes once it is loaded. Reads all of it."""
        return parsed_bytes(self.fields)

    @property
    def num_bytes(self) -> int:
        """How many bytes the stored item takes, about."""
        return _ITEM_BYTES + len(self.id.encode()) + len(self.fields)

    @property
    def head(self) -> bytes:
        """The beginning of the item's JSON; all but the first byte of `fields` follow."""
        return b'{"id":' + to_json(self.id) + b","

    @property
    def json(self) -> bytes:
        return self.head + self.fields[1:]

    def load(self) -> Item:
        """Parse the item's stored JSON, and return the item. Raises StorageError if it is damaged."""
        try:
            fields = from_json(self.fields)
            if not isinstance(fields, dict):
                raise ValueError(f"{fields!r} is no object")
            return {"id": self.id, **fields}
        except ValueError as error:
            raise StorageError(f"the item {self.id!r} was kept and is damaged: {error}") from error


def new_item_id(kind: str) -> str:
    """Return a new random id for an item of the type `kind`."""
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex[:28]}"


def total_bytes(items: Sequence[StoredItem]) -> int:
    """Return the bytes of some items."""
    return sum(item.num_bytes for item in items)


class Place(NamedTuple):
    """Where an item is stored, and its bytes, which are known before it is read."""

    number: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class History:
    """What had been said at some moment: where its items are stored and, once they were read, the items."""

    turn: int | None = None  # the last one; None = nothing was said
    places: Sequence[Place] = ()
    items: Sequence[StoredItem] = ()


# Queries. `most` is the number of last turns whose items are meant.


def history(db: sqlite3.Connection | Transaction, turn: int | None, most: int = _NO_END) -> History:
    """Return what has been said up to the end of a turn, without the items."""
    return History(turn, _places(db, turn, most, "ASC"))


def page(db: sqlite3.Connection, turn: int | None, cursor: Cursor, most: int = _NO_END) -> Page[Place]:
    """Return a part of the items up to a turn. Raises InvalidRequestError if the cursor is not at one of them."""
    condition, values = "TRUE", list[int]()
    if cursor.after is not None:
        if (after := find(db, turn, cursor.after, most)) is None:
            raise InvalidRequestError("after", cursor.after, "the id of an item in this list")
        condition, values = f"items.number {'>' if cursor.ascending else '<'} ?", [after.number]
    order = "ASC" if cursor.ascending else "DESC"
    found = _places(db, turn, most, order, condition, values, cursor.limit + 1)
    return Page(found[: cursor.limit], len(found) > cursor.limit)


def find(db: sqlite3.Connection | Transaction, turn: int | None, item_id: str, most: int = _NO_END) -> Place | None:
    """Return the place of an item, or None if there is none with this id."""
    query = f"{_CHAIN} SELECT items.number, {_NUM_BYTES} {_IN_CHAIN} WHERE items.id = ? LIMIT 1"
    found = db.execute(query, (turn, most, item_id)).fetchone()
    return None if found is None else Place(*found)


def parent_of(db: sqlite3.Connection, turn: int | None) -> int | None:
    """Return the turn before another one, None if there is none."""
    found = db.execute("SELECT parent FROM turns WHERE number = ?", (turn,)).fetchone()
    return None if found is None else found[0]


def read_items(db: sqlite3.Connection | Transaction, places: Sequence[Place]) -> list[StoredItem]:
    """Return the items at these places that are there."""
    query = "SELECT number, id, type, fields FROM items WHERE number IN (SELECT value FROM json_each(?))"
    found = {number: row for number, *row in db.execute(query, (_numbers(places),))}
    return [StoredItem(*found[place.number]) for place in places if place.number in found]


def _places(
    db: sqlite3.Connection | Transaction,
    turn: int | None,
    most: int,
    order: str,
    condition: str = "TRUE",
    values: Sequence[int] = (),
    limit: int = -1,
) -> list[Place]:
    numbers = f"{_CHAIN} SELECT items.number {_IN_CHAIN} WHERE {condition} ORDER BY items.number {order} LIMIT ?"
    query = f"SELECT number, {_NUM_BYTES} FROM items WHERE number IN ({numbers}) ORDER BY number {order}"
    return [Place(*row) for row in db.execute(query, (turn, most, *values, limit))]


def _numbers(places: Sequence[Place]) -> str:
    return json.dumps([place.number for place in places])


def piece_bytes(places: Sequence[Place]) -> int:
    """Return the most bytes that are read at a time of some items."""
    return max((sum(place.num_bytes for place in piece) for piece in _pieces(places)), default=0)


def _pieces(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Yield some items in pieces, none of which takes long to read."""
    piece, num_bytes = list[Place](), 0
    for place in places:
        if piece and (num_bytes + place.num_bytes > _PIECE_BYTES or len(piece) == _PIECE_ITEMS):
            yield piece
            piece, num_bytes = [], 0
        piece.append(place)
        num_bytes += place.num_bytes
    if piece:
        yield piece


class Turns:
    """The turns of all owners, and the bytes that each owner has."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._has_unused = True  # turns; some may be left from before the start
        self._is_sweeping = False
        self._gives_back = False  # to the disk what is freed
        self._num_free = 0  # pages of the database after the last piece that was deleted

    async def read(self, places: Sequence[Place], owner: str | None) -> list[StoredItem]:
        """Return the items at these places, without those that were deleted meanwhile. Raises StorageError."""
        return [item async for piece in self.pieces(places, owner) for item in piece]

    async def pieces(self, places: Sequence[Place], owner: str | None) -> AsyncGenerator[list[StoredItem], None]:
        """Do as `read`, piece by piece, between which other owners have their turns."""
        for piece in _pieces(places):
            yield await self._database.read(partial(read_items, places=piece), owner)

    async def sweep(self, *, frees: bool) -> None:
        """Delete all turns that nothing needs, piece by piece, between which other owners have their turns.

        What can't be deleted now is deleted later. If it `frees` room, that is given back to the disk.
        """
        self._gives_back |= frees
        if self._is_sweeping:
            return
        self._is_sweeping = True
        try:
            while self._has_unused:
                await self._database.write(self._sweep, frees=self._gives_back, flushes=False, short=True)
        except StorageError as error:
            _log.warning("what was said is not deleted yet: %s", error)
        finally:
            self._is_sweeping = False

    # Parts of changes.

    def add(self, transaction: Transaction, owner: str, parent: int | None, items: Sequence[StoredItem]) -> int:
        """Add a turn after another one, or one that begins a conversation, and return its number.

        It must be used in the same change.
        """
        insert = "INSERT INTO turns (owner, parent, uses, num_items, num_bytes) VALUES (?, ?, 0, ?, ?)"
        number = transaction.execute(insert, (owner, parent, len(items), total_bytes(items))).lastrowid
        assert number is not None
        rows = [(number, item.id, item.type, item.fields) for item in items]
        transaction.executemany("INSERT INTO items (turn, id, type, fields) VALUES (?, ?, ?, ?)", rows)
        self.use(transaction, parent)
        self.count(transaction, owner, total_bytes(items))
        return number

    def remove(self, transaction: Transaction, owner: str, turn: int | None, removed: Place) -> int | None:
        """Remove an item from those up to a turn, and return the number of the last turn.

        Turns that something else needs stay as they are; those from the item on are copied then.
        """
        query = "SELECT turns.number, parent FROM items JOIN turns ON turns.number = turn WHERE items.number = ?"
        first, parent = transaction.execute(query, (removed.number,)).fetchone()
        later = f"SELECT number FROM chain WHERE number >= {first}"
        shared = f"{_CHAIN} SELECT 1 FROM turns WHERE uses > 1 AND number IN ({later})"
        if transaction.execute(shared, (turn, _NO_END)).fetchone() is None:
            transaction.execute("DELETE FROM items WHERE number = ?", (removed.number,))
        else:
            copied, first = turn, self.add(transaction, owner, parent, ())
            copy = f"SELECT ?, id, type, fields FROM items WHERE turn IN ({later}) AND number != ? ORDER BY number"
            copy = f"INSERT INTO items (turn, id, type, fields) {_CHAIN} {copy}"
            transaction.execute(copy, (copied, _NO_END, turn := first, removed.number))
        query = "SELECT num_bytes FROM turns WHERE number = ?"
        [before] = transaction.execute(query, (first,)).fetchone()
        update = f"""UPDATE turns SET (num_items, num_bytes) =
            (SELECT count(*), coalesce(sum({_NUM_BYTES}), 0) FROM items WHERE turn = ?1) WHERE number = ?1"""
        transaction.execute(update, (first,))
        [after] = transaction.execute(query, (first,)).fetchone()
        self.count(transaction, owner, after - before)
        return turn

    def last_of(self, transaction: Transaction, owner: str, before: History) -> int | None:
        """Return the last turn of a history, which is stored again if it was deleted meanwhile."""
        query = "SELECT 1 FROM turns WHERE number = ? AND uses > 0"
        if not before.items or transaction.execute(query, (before.turn,)).fetchone() is not None:
            return before.turn
        return self.add(transaction, owner, None, before.items)

    def with_own_ids(
        self, transaction: Transaction, turn: int | None, items: Sequence[StoredItem]
    ) -> Sequence[StoredItem]:
        """Return `items`, with new ids for those whose ids are of items up to a turn or of earlier ones of `items`."""
        query = f"{_CHAIN} SELECT items.id {_IN_CHAIN} WHERE +items.id IN (SELECT value FROM json_each(?))"
        ids = json.dumps([item.id for item in items])
        taken = {item_id for (item_id,) in transaction.execute(query, (turn, _NO_END, ids))}
        own = list[StoredItem]()
        for item in items:
            own.append(replace(item, id=new_item_id(item.type)) if item.id in taken else item)
            taken.add(item.id)
        return own

    def size(self, transaction: Transaction, turn: int | None) -> tuple[int, int]:
        """Return how many items there are up to a turn, and their bytes."""
        query = f"{_CHAIN} SELECT coalesce(sum(num_items), 0), coalesce(sum(num_bytes), 0) FROM chain"
        num_items, num_bytes = transaction.execute(query, (turn, _NO_END)).fetchone()
        return num_items, num_bytes

    def use(self, transaction: Transaction, turn: int | None) -> None:
        """Keep a turn, and all before it, until `release` is called as often as this."""
        transaction.execute("UPDATE turns SET uses = uses + 1 WHERE number = ?", (turn,))

    def release(self, transaction: Transaction, turn: int | None) -> None:
        """End one use of a turn. If nothing needs it any more, end its use of the turn before."""
        query = """
            WITH RECURSIVE unused (number, parent, owner, num_bytes) AS (
                SELECT number, parent, owner, num_bytes FROM turns WHERE number = ? AND uses = 1
                UNION ALL
                SELECT turns.number, turns.parent, turns.owner, turns.num_bytes
                FROM unused JOIN turns ON turns.number = unused.parent WHERE turns.uses = 1
            )
            SELECT * FROM unused
        """
        for number, parent, owner, num_bytes in transaction.execute(query, (turn,)).fetchall():
            transaction.execute("UPDATE turns SET uses = 0 WHERE number = ?", (number,))
            self.count(transaction, owner, -num_bytes)
            self._has_unused = True
            turn = parent
        transaction.execute("UPDATE turns SET uses = uses - 1 WHERE number = ?", (turn,))

    def count(self, transaction: Transaction, owner: str, num_bytes: int) -> None:
        """Add to the bytes that an owner has."""
        insert = "INSERT INTO owners VALUES (?1, ?2) ON CONFLICT DO UPDATE SET num_bytes = num_bytes + ?2"
        transaction.execute(insert, (owner, num_bytes))

    def mend(self, transaction: Transaction) -> None:
        """Delete turns that are not whole, as in a damaged file, and what needs them, and count all uses anew."""
        not_whole = """DELETE FROM turns WHERE num_items != (SELECT count(*) FROM items WHERE turn = turns.number)
            OR parent NOT IN (SELECT number FROM turns)"""
        while transaction.execute(not_whole).rowcount:
            pass
        for lost in ("items", "ends"):
            transaction.execute(f"DELETE FROM {lost} WHERE turn NOT IN (SELECT number FROM turns)")
        parents = dict(transaction.execute("SELECT number, parent FROM turns").fetchall())
        uses = Counter[int]()
        for (turn,) in transaction.execute("SELECT turn FROM ends WHERE turn IS NOT NULL"):
            last = turn
            while last is not None:
                uses[last] += 1
                last = parents[last] if uses[last] == 1 else None
        transaction.execute("UPDATE turns SET uses = 0")
        transaction.executemany("UPDATE turns SET uses = ? WHERE number = ?", [(n, turn) for turn, n in uses.items()])
        transaction.execute("DELETE FROM owners")
        transaction.execute("INSERT INTO owners SELECT owner, sum(num_bytes) FROM turns WHERE uses > 0 GROUP BY owner")
        self._has_unused = True

    def _sweep(self, transaction: Transaction) -> None:
        """Delete a piece of the items of unused turns, or these turns if they have no items any more."""
        query = f"""SELECT items.number, {_NUM_BYTES} FROM turns JOIN items ON items.turn = turns.number
            WHERE turns.uses = 0 LIMIT {_PIECE_ITEMS}"""
        places = [Place(*row) for row in transaction.execute(query)]
        for piece in islice(_pieces(places), 1):
            delete = "DELETE FROM items WHERE number IN (SELECT value FROM json_each(?))"
            transaction.execute(delete, (_numbers(piece),))
        before, [self._num_free] = self._num_free, transaction.execute("PRAGMA freelist_count").fetchone()
        if not places:
            transaction.execute("DELETE FROM turns WHERE uses = 0")
            transaction.after(partial(self._end_sweep, 0 < self._num_free < before))

    def _end_sweep(self, shrinks: bool) -> None:
        """Note that no turn is unused. If the file `shrinks`, there is more room to be given back."""
        self._has_unused = self._gives_back = self._gives_back and shrinks
