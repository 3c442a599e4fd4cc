"""What conversations and responses share: each ends with a turn, and gives way when there is no room."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from rnn_engine.database import Database, Transaction
from rnn_engine_server.core.kept import KeptUsage
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.store.files import Blobs
from rnn_engine_server.store.owners import Cursor, Expiry, Page, Table, Thing
from rnn_engine_server.store.turns import History, Turns, history

THING_BYTES: Final = 1024
"""Bytes that a conversation or a response takes beside its texts."""
EVENTS: Final = "events"
"""The ending of the blob with the events of a response, and the label of responses that have one."""
BOUNDS: Final = {"responses": "max_responses", "conversations": "max_conversations"}
"""By table, the name of the limit on the things of an owner."""
GONE: Final = "; it never existed, or it was deleted or dropped to make room for others"
T = TypeVar("T", bound=Thing)
R = TypeVar("R")


class HistoryRoom:
    """The bounds of all conversations and responses, and which of them give way.

    Beyond a bound, what its owner has not used for longest is dropped, in the change that would pass the bound.
    """

    def __init__(self, database: Database, blobs: Blobs, limits: Limits, clock: Callable[[], float]) -> None:
        self.database = database
        self.turns = Turns(database)
        self.blobs = blobs
        self.limits = limits
        self.now = clock
        """Returns the Unix time in seconds."""
        self.num_evictions = 0  # since the start
        self._used: dict[str, float] = {}  # what was used since the last change, and when

    def usage(self, db: sqlite3.Connection) -> KeptUsage:
        """Return how many conversations and responses there are, and the bytes of everything."""
        [number] = db.execute("SELECT count(*) FROM ends").fetchone()
        [num_bytes] = db.execute("SELECT coalesce(sum(num_bytes), 0) FROM owners").fetchone()
        return KeptUsage(number, num_bytes, self.num_evictions)

    def note_use(self, thing_id: str) -> None:
        """Note that a conversation is used now, so that it gives way later. Responses give way by their age."""
        self._used[thing_id] = self.now()

    async def write(
        self, change: Callable[[Transaction], R], owner: str | None, *, frees: bool = False, flushes: bool = False
    ) -> R:
        """Make a change, as `Database.write` does, and delete what nothing needs after it."""
        result = await self.database.write(change, owner, frees=frees, flushes=flushes or frees, short=True)
        await self.turns.sweep(frees=frees)
        return result

    # Parts of changes.

    def put(
        self,
        transaction: Transaction,
        table: Table[T],
        thing: T,
        turn: int | None,
        *,
        used: float | None,
        body: bytes | None = None,
        request: bytes | None = None,
    ) -> None:
        """Write a thing with its last turn, in place of its former form, and drop what is beyond the bounds.

        It was `used` last at that time; None = it does not give way.
        """
        query = f"SELECT turn, num_bytes FROM ends JOIN {table.name} USING (id) WHERE id = ?"
        old_turn, old_bytes = transaction.execute(query, (thing.id,)).fetchone() or (None, 0)
        table.put(transaction, thing)
        transaction.execute(
            """INSERT INTO ends (id, owner, kind, turn, used, body, request) VALUES (?, ?, ?, ?, ?, ?, ?)
                ON CONFLICT (id) DO UPDATE SET turn = excluded.turn, used = excluded.used, body = excluded.body,
                request = excluded.request""",
            (thing.id, thing.owner, table.name, turn, used, body, request),
        )
        self.turns.use(transaction, turn)
        self.turns.release(transaction, old_turn)
        self.turns.count(transaction, thing.owner, thing.columns.num_bytes - old_bytes)
        self._make_room(transaction, thing.owner)

    def forget(self, transaction: Transaction, thing_id: str) -> None:
        """Delete a conversation or a response, its events after the end of the change."""
        query = "DELETE FROM ends WHERE id = ? RETURNING kind, turn"
        for kind, turn in transaction.execute(query, (thing_id,)).fetchall():
            self.turns.release(transaction, turn)
            query = f"DELETE FROM {kind} WHERE id = ? RETURNING owner, label, num_bytes"
            for owner, label, num_bytes in transaction.execute(query, (thing_id,)).fetchall():
                self.turns.count(transaction, owner, -num_bytes)
                if label == EVENTS:
                    transaction.after(lambda: self.blobs.delete(f"{thing_id}.{EVENTS}"))

    def evict(self, transaction: Transaction, thing_id: str) -> None:
        """Delete something to make room."""
        self.forget(transaction, thing_id)
        self.num_evictions += 1

    def mend(self, transaction: Transaction) -> None:
        """Drop what is not whole, as in a damaged file, and count everything anew."""
        for kind in BOUNDS:
            transaction.execute(f"DELETE FROM ends WHERE kind = ? AND id NOT IN (SELECT id FROM {kind})", (kind,))
        self.turns.mend(transaction)
        for kind in BOUNDS:
            transaction.execute(f"DELETE FROM {kind} WHERE id NOT IN (SELECT id FROM ends)")
            for owner, num_bytes in transaction.execute(f"SELECT owner, num_bytes FROM {kind}").fetchall():
                self.turns.count(transaction, owner, num_bytes)

    def _make_room(self, transaction: Transaction, owner: str) -> None:
        """Drop what is beyond the bounds: of the owner, and of those who have most."""
        used, self._used = self._used, {}
        update = "UPDATE ends SET used = ?2 WHERE id = ?1 AND used < ?2 AND kind = 'conversations'"
        transaction.executemany(update, list(used.items()))
        for kind, bound in BOUNDS.items():
            query, most = f"SELECT count(*) FROM {kind} WHERE owner = ?", getattr(self.limits, bound)
            while transaction.execute(query, (owner,)).fetchone()[0] > most and self._evict_of(
                transaction, owner, kind
            ):
                pass
        query, most = "SELECT num_bytes FROM owners WHERE name = ?", self.limits.max_conversation_bytes
        while transaction.execute(query, (owner,)).fetchone()[0] > most and self._evict_of(transaction, owner):
            pass
        query, most = "SELECT sum(num_bytes) FROM owners", self.limits.max_all_conversation_bytes
        while transaction.execute(query).fetchone()[0] > most:
            owners = transaction.execute("SELECT name FROM owners ORDER BY num_bytes DESC").fetchall()
            if not any(self._evict_of(transaction, name) for (name,) in owners):
                break

    def _evict_of(self, transaction: Transaction, owner: str, kind: str | None = None) -> bool:
        """Drop what an owner has not used for longest. Return False if there is nothing."""
        query = """SELECT id FROM ends WHERE owner = ?1 AND used IS NOT NULL AND (?2 IS NULL OR kind = ?2)
            ORDER BY used, number LIMIT 1"""
        found = transaction.execute(query, (owner, kind)).fetchone()
        if found is not None:
            self.evict(transaction, found[0])
        return found is not None


class Histories(Generic[T]):
    """The conversations, or the responses, of all owners. Where an owner is asked for, None stands for all."""

    def __init__(self, table: Table[T], room: HistoryRoom) -> None:
        self.room = room
        self.table = table
        self.expiry = Expiry(room.database, table, room.now, lambda change, thing: room.forget(change, thing.id))

    async def page(self, owner: str | None, cursor: Cursor) -> Page[T]:
        """Return a part of the list of an owner's things. Raises InvalidRequestError."""
        await self.drop_expired()
        return await self.room.database.read(lambda db: self.table.page(db, owner, cursor), owner)

    async def get(self, owner: str | None, thing_id: str) -> T:
        """Return the owner's thing with this id. Raises NotFoundError if there is none."""
        return await self.read(owner, thing_id, lambda _, thing: thing)

    async def history(self, owner: str | None, thing_id: str) -> History:
        """Return what has been said up to the end of the owner's thing, without the items. Raises NotFoundError."""
        return await self.read(owner, thing_id, lambda db, thing: history(db, last_turn(db, thing.id)))

    async def read(self, owner: str | None, thing_id: str, query: Callable[[sqlite3.Connection, T], R]) -> R:
        """Return what `query` returns of the owner's thing with this id. Raises NotFoundError if there is none."""
        await self.drop_expired()
        found = await self.room.database.read(lambda db: query(db, self.table.find(db, owner, thing_id)), owner)
        self.room.note_use(thing_id)
        return found

    async def drop_expired(self) -> None:
        """Delete what has expired."""
        await self.expiry.drop()
        await self.room.turns.sweep(frees=True)

    async def delete(self, owner: str | None, thing_id: str) -> None:
        """Delete the owner's thing with this id, also on a full disk. Raises NotFoundError if there is none."""

        def delete(transaction: Transaction) -> None:
            self.room.forget(transaction, self.table.find(transaction, owner, thing_id).id)

        await self.room.write(delete, owner, frees=True)


def last_turn(db: sqlite3.Connection | Transaction, thing_id: str) -> int | None:
    """Return the last turn of a conversation or a response, None if it has none."""
    found = db.execute("SELECT turn FROM ends WHERE id = ?", (thing_id,)).fetchone()
    return None if found is None else found[0]
