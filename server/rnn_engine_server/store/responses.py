"""The conversations and responses that clients retrieve or continue later, and those that run in the background.

The last turn of a response is its output, and the one before has the items of its request. The last turn of a response
that has not ended is that with the items of its request.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import to_json

from rnn_engine.database import Transaction
from rnn_engine.errors import NotFoundError, OverloadedError
from rnn_engine_server.store.histories import EVENTS, GONE, THING_BYTES, Histories, HistoryRoom, last_turn
from rnn_engine_server.store.owners import Columns, Cursor, Page, Table
from rnn_engine_server.store.turns import (
    History,
    Item,
    Place,
    StoredItem,
    find,
    history,
    page,
    parent_of,
    read_items,
    total_bytes,
)


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


_RETRY_SECONDS: Final = 1.0
_OUTPUT_ID: Final = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{4,}")  # of an item: the key of its response, a number
_UNFINISHED: Final = "unfinished"


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What a response is, without its texts."""

    id: str
    owner: str
    created: float  # Unix time, seconds
    expires: float | None  # None until it has ended
    is_background: bool
    body_bytes: int  # of all but its output
    output_bytes: int = 0
    request_bytes: int = 0  # of the body of its request, until it has ended
    events_bytes: int | None = None  # of the blob of its events, once it has ended; None = it has none

    @property
    def has_ended(self) -> bool:
        return self.expires is not None

    @property
    def num_bytes(self) -> int:
        """The bytes of the whole response as JSON, about."""
        return self.body_bytes + self.output_bytes

    @property
    def columns(self) -> Columns:
        return Columns(
            "" if self.events_bytes is None else EVENTS,
            "" if self.has_ended else _UNFINISHED,
            self.expires,
            THING_BYTES + self.body_bytes + self.request_bytes + (self.events_bytes or 0),
        )


RESPONSES: Final = Table("responses", TypeAdapter(StoredResponse), "response", GONE)


class Responses(Histories[StoredResponse]):
    """The responses of all owners."""

    def __init__(self, room: HistoryRoom, conversations: Conversations) -> None:
        super().__init__(RESPONSES, room)
        self._conversations = conversations

    async def json(self, response: StoredResponse) -> bytes:
        """Return a response as JSON. Raises NotFoundError if it was deleted meanwhile."""
        return await self.read(response.owner, response.id, _response_json)

    async def queued(self, response: StoredResponse) -> tuple[bytes, bytes]:
        """Return a response that has not ended as JSON, and the body of its request. Raises NotFoundError."""
        query = "SELECT request FROM ends WHERE id = ?"

        def read(db: sqlite3.Connection, response: StoredResponse) -> tuple[bytes, bytes]:
            return _response_json(db, response), db.execute(query, (response.id,)).fetchone()[0] or b""

        return await self.read(response.owner, response.id, read)

    async def input_page(self, owner: str | None, response_id: str, cursor: Cursor) -> Page[Place]:
        """Return the places of a part of the items of the request for a response.

        Raises NotFoundError and InvalidRequestError.
        """
        return await self.read(owner, response_id, lambda db, each: page(db, _input_turn(db, each), cursor, 1))

    async def asked(self, owner: str, response_id: str) -> tuple[History, History]:
        """Return what was said before the request for a response, and what the request has. Raises NotFoundError."""

        def read(db: sqlite3.Connection, response: StoredResponse) -> tuple[History, History]:
            turn = _input_turn(db, response)
            return history(db, parent_of(db, turn)), history(db, turn, 1)

        return await self.read(owner, response_id, read)

    async def unfinished(self) -> list[StoredResponse]:
        """Return the responses that have not ended, the oldest first."""
        return await self.room.database.read(_unfinished)

    async def add(
        self,
        owner: str,
        response: Mapping[str, Any],
        given: Sequence[StoredItem],
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
        body, output = await asyncio.to_thread(_texts_of, response)
        made = self._describe(owner, response, body, output)

        def add(transaction: Transaction) -> None:
            most = self.room.limits.max_conversation_bytes
            if keep and made.columns.num_bytes + total_bytes((*given, *output)) > most:
                self.room.num_evictions += 1
            elif keep:
                turns = self.room.turns
                turn = turns.add(transaction, owner, turns.last_of(transaction, owner, before), given)
                turn = turns.add(transaction, owner, turn, output)
                self.room.put(transaction, self.table, made, turn, used=made.created, body=body)
                self.expiry.note(made.expires)
            if conversation_id is not None:
                self._conversations.add_answer(transaction, owner, conversation_id, (*given, *output))

        await self.room.write(add, owner)

    async def queue(
        self,
        owner: str,
        response: Mapping[str, Any],
        given: Sequence[StoredItem],
        before: History,
        request: bytes,
        *,
        with_events: bool,
    ) -> StoredResponse:
        """Keep a response that has not begun, with the body of its request, and return it.

        Raises OverloadedError if the owner may have no more of them. Their requests may have `max_body_bytes` in all.
        """
        body, _ = await asyncio.to_thread(_texts_of, response)
        made = replace(
            self._describe(owner, response, body, ()),
            expires=None,
            request_bytes=len(request),
            events_bytes=0 if with_events else None,
        )

        def queue(transaction: Transaction) -> None:
            limits, turns = self.room.limits, self.room.turns
            unfinished = _unfinished(transaction, owner)
            num_bytes = sum(each.request_bytes for each in unfinished) + len(request)
            for name, number in (("max_key_background", len(unfinished) + 1), ("max_body_bytes", num_bytes)):
                if number > getattr(limits, name):
                    message = f"{len(unfinished)} responses of this API key run in the background, the most ({name})"
                    raise OverloadedError(message, _RETRY_SECONDS)
            turn = turns.add(transaction, owner, turns.last_of(transaction, owner, before), given)
            self.room.put(transaction, self.table, made, turn, used=None, body=body, request=request)

        await self.room.write(queue, owner, flushes=True)
        return made

    async def finish(self, response: Mapping[str, Any], events_bytes: int, *, frees: bool = False) -> None:
        """Store how a queued response has ended, and add it to its conversation if it has one and did not fail.

        If it was deleted or has ended before, nothing is stored. One that `frees` is stored also on a full disk.
        """
        body, output = await asyncio.to_thread(_texts_of, response)

        def finish(transaction: Transaction) -> None:
            old = next(self.table.select(transaction, "id = ? AND status = ?", response["id"], _UNFINISHED), None)
            if old is None:
                return
            new = replace(
                self._describe(old.owner, response, body, output),
                created=old.created,
                events_bytes=None if old.events_bytes is None else events_bytes,
            )
            before = last_turn(transaction, old.id)
            turn = self.room.turns.add(transaction, old.owner, before, output)
            self.room.put(transaction, self.table, new, turn, used=self.room.now(), body=body)
            self.expiry.note(new.expires)
            if output and (conversation := response["conversation"]) is not None:
                given = read_items(transaction, history(transaction, before, 1).places)
                self._conversations.add_answer(transaction, old.owner, conversation["id"], (*given, *output))

        await self.room.write(finish, None, frees=frees)

    async def resolve(self, owner: str, items: Sequence[Item], missing: list[str] | None = None) -> list[StoredItem]:
        """Return a request's items in the form for storing, with the stored item in place of each reference.

        References to what is not stored are left out and added to `missing`; without it, they raise NotFoundError.
        Raises InvalidRequestError if the items are too large.
        """
        wanted = list(dict.fromkeys(item["id"] for item in items if item["type"] == "item_reference"))
        found = dict[str, StoredItem]()
        if wanted:
            self.room.limits.check("max_messages", "item_reference", len(wanted))
            await self.drop_expired()
            found = await self.room.database.read(lambda db: self._outputs(db, owner, wanted), owner)
        lost = [item_id for item_id in wanted if item_id not in found]
        if missing is not None:
            missing.extend(lost)
        elif lost:
            raise NotFoundError(f"no response that is kept has an item {lost[0][:80]!r}")

        def resolve() -> list[StoredItem]:
            resolved = (
                found.get(item["id"]) if item["type"] == "item_reference" else StoredItem.of(item) for item in items
            )
            return [item for item in resolved if item is not None]

        return await asyncio.to_thread(resolve)

    def _outputs(self, db: sqlite3.Connection, owner: str, item_ids: Sequence[str]) -> dict[str, StoredItem]:
        """Return the items with these ids in the outputs of an owner's responses."""
        found, num_bytes = dict[str, StoredItem](), 0
        query = "SELECT turn FROM ends WHERE id = ? AND owner = ? AND request IS NULL"
        for item_id in item_ids:
            match = _OUTPUT_ID.fullmatch(item_id)
            row = None if match is None else db.execute(query, (f"resp_{match[1]}", owner)).fetchone()
            place = None if row is None else find(db, row[0], item_id, 1)
            if place is not None:
                num_bytes += place.num_bytes
                self.room.limits.check("max_body_bytes", "item_reference", num_bytes)
                [found[item_id]] = read_items(db, [place])
        return found

    def _describe(
        self, owner: str, response: Mapping[str, Any], body: bytes, output: Sequence[StoredItem]
    ) -> StoredResponse:
        now = self.room.now()
        expires = now + self.room.limits.max_response_seconds
        is_background = response.get("background", False)
        return StoredResponse(response["id"], owner, now, expires, is_background, len(body), total_bytes(output))


def _texts_of(response: Mapping[str, Any]) -> tuple[bytes, Sequence[StoredItem]]:
    """Return a response without its output as JSON, and its output."""
    body = to_json({name: value for name, value in response.items() if name != "output"})
    return body, tuple(map(StoredItem.of, response["output"]))


def _response_json(db: sqlite3.Connection, response: StoredResponse) -> bytes:
    [turn, body] = db.execute("SELECT turn, body FROM ends WHERE id = ?", (response.id,)).fetchone()
    places = history(db, turn, 1).places if response.has_ended else ()
    items = read_items(db, places)
    return bytes(body[:-1]) + b',"output":[' + b",".join(item.json for item in items) + b"]}"


def _input_turn(db: sqlite3.Connection, response: StoredResponse) -> int | None:
    turn = last_turn(db, response.id)
    return parent_of(db, turn) if response.has_ended else turn


def _unfinished(db: sqlite3.Connection | Transaction, owner: str | None = None) -> list[StoredResponse]:
    condition = "status = ? AND (?2 IS NULL OR owner = ?2) ORDER BY number"
    return list(RESPONSES.select(db, condition, _UNFINISHED, owner))
