"""The conversations that clients keep on the server: their items, which clients and responses add."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import TypeAdapter
from pydantic_core import to_json

from rnn_engine.database import Transaction
from rnn_engine.errors import NotFoundError
from rnn_engine_server.store.histories import GONE, THING_BYTES, Histories, HistoryRoom, last_turn
from rnn_engine_server.store.owners import Columns, Cursor, Page, Table
from rnn_engine_server.store.turns import Place, StoredItem, find, page, total_bytes


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a conversation is, without its items."""

    id: str
    owner: str
    created: float  # Unix time, seconds
    metadata: Mapping[str, str]

    @property
    def columns(self) -> Columns:
        return Columns("", num_bytes=THING_BYTES + len(to_json(self.metadata)))


CONVERSATIONS: Final = Table("conversations", TypeAdapter(Conversation), "conversation", GONE)


class Conversations(Histories[Conversation]):
    """The conversations of all owners."""

    def __init__(self, room: HistoryRoom) -> None:
        super().__init__(CONVERSATIONS, room)

    async def create(self, owner: str, items: Sequence[StoredItem], metadata: Mapping[str, str]) -> Conversation:
        """Store a new conversation, and return it. Raises InvalidRequestError if it exceeds the limits."""
        made = Conversation(f"conv_{uuid.uuid4().hex}", owner, self.room.now(), metadata)

        def create(transaction: Transaction) -> None:
            self._append(transaction, made, None, self._checked(transaction, made, None, items))

        await self.room.write(create, owner)
        return made

    async def describe(self, owner: str | None, conversation_id: str, metadata: Mapping[str, str]) -> Conversation:
        """Replace the metadata of a conversation, and return it. Raises NotFoundError."""

        def describe(transaction: Transaction) -> Conversation:
            found = self.table.find(transaction, owner, conversation_id)
            described = replace(found, metadata=metadata)
            self._append(transaction, described, last_turn(transaction, conversation_id), ())
            return described

        return await self.room.write(describe, owner)

    async def item_page(self, owner: str | None, conversation_id: str, cursor: Cursor) -> Page[Place]:
        """Return the places of a part of the items. Raises NotFoundError and InvalidRequestError."""
        return await self.read(owner, conversation_id, lambda db, each: page(db, last_turn(db, each.id), cursor))

    async def item(self, owner: str | None, conversation_id: str, item_id: str) -> Place:
        """Return the place of an item. Raises NotFoundError if the conversation or the item does not exist."""
        return await self.read(owner, conversation_id, lambda db, each: _item(db, each.id, item_id))

    async def add(self, owner: str | None, conversation_id: str, items: Sequence[StoredItem]) -> Sequence[StoredItem]:
        """Append items to a conversation, and return them with their ids.

        Raises NotFoundError if there is none, and InvalidRequestError if it becomes too large.
        """

        def add(transaction: Transaction) -> Sequence[StoredItem]:
            found = self.table.find(transaction, owner, conversation_id)
            turn = last_turn(transaction, conversation_id)
            added = self._checked(transaction, found, turn, items)
            self._append(transaction, found, turn, added)
            return added

        return await self.room.write(add, owner)

    async def remove_item(self, owner: str | None, conversation_id: str, item_id: str) -> Conversation:
        """Remove one item from a conversation, and return the conversation.

        Raises NotFoundError if the conversation or the item does not exist.
        """

        def remove(transaction: Transaction) -> Conversation:
            found = self.table.find(transaction, owner, conversation_id)
            turn = last_turn(transaction, conversation_id)
            removed = _item(transaction, conversation_id, item_id)
            self._append(transaction, found, self.room.turns.remove(transaction, found.owner, turn, removed), ())
            return found

        return await self.room.write(remove, owner)

    def add_answer(
        self, transaction: Transaction, owner: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        """Append items to a conversation, unless it was deleted. If it becomes too large, it is dropped."""
        try:
            found = self.table.find(transaction, owner, conversation_id)
        except NotFoundError:
            return
        turns, turn = self.room.turns, last_turn(transaction, conversation_id)
        _, num_bytes = turns.size(transaction, turn)
        if found.columns.num_bytes + num_bytes + total_bytes(items) > self.room.limits.max_conversation_bytes:
            self.room.evict(transaction, conversation_id)
        else:
            self._append(transaction, found, turn, turns.with_own_ids(transaction, turn, items))

    def _checked(
        self, transaction: Transaction, found: Conversation, turn: int | None, items: Sequence[StoredItem]
    ) -> Sequence[StoredItem]:
        """Return items with ids of their own. Raises InvalidRequestError if the conversation would be too large."""
        turns, limits = self.room.turns, self.room.limits
        num_items, num_bytes = turns.size(transaction, turn)
        limits.check("max_messages", "items", num_items + len(items))
        added = turns.with_own_ids(transaction, turn, items)
        limits.check("max_conversation_bytes", "items", found.columns.num_bytes + num_bytes + total_bytes(added))
        return added

    def _append(
        self, transaction: Transaction, found: Conversation, turn: int | None, items: Sequence[StoredItem]
    ) -> None:
        if items:
            turn = self.room.turns.add(transaction, found.owner, turn, items)
        self.room.put(transaction, self.table, found, turn, used=self.room.now())


def _item(db: sqlite3.Connection | Transaction, conversation_id: str, item_id: str) -> Place:
    found = find(db, last_turn(db, conversation_id), item_id)
    if found is None:
        raise NotFoundError(f"{conversation_id!r} has no item {item_id[:80]!r}")
    return found
