"""OpenAI's conversations, which the server stores. Requests add items to them, and so do responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from rnn_engine.errors import NotFoundError
from rnn_engine_server.apis.common.owned import (
    Deleted,
    PageOf,
    cursor_query,
    delete_own,
    own,
    own_page,
    owner_of,
    page_ends,
    page_query,
    query_cursor,
)
from rnn_engine_server.apis.openai.response_items import (
    AddItemsRequest,
    CreateConversationRequest,
    KeptConversation,
    UpdateConversationRequest,
)
from rnn_engine_server.apis.openai.response_schemas import ResponseItem
from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import JSON_TEXT, Encoded, RouteTable, Stream
from rnn_engine_server.core.routing import AppKey
from rnn_engine_server.core.schema import described
from rnn_engine_server.store.folder import Store
from rnn_engine_server.store.owners import Cursor, Page
from rnn_engine_server.store.responses import Conversation
from rnn_engine_server.store.turns import Place, StoredItem, piece_bytes

STORE = AppKey("store", Store)
"""What clients leave on the server."""
MOST_ITEMS = 100  # of a page
PAGE_QUERY = cursor_query("items", 20, MOST_ITEMS)


ROUTES = RouteTable(uses_model=False)


@ROUTES.post("/v1/conversations")
async def create_conversation(call: Call, body: CreateConversationRequest) -> KeptConversation:
    """Keep a conversation, which responses can continue and add to."""
    store, owner = call.app[STORE], call.principal.name
    items = await store.responses.resolve(owner, body.items)
    return _object(await store.conversations.create(owner, items, body.metadata))


@ROUTES.get("/v1/conversations", query=page_query("conversations", 20, MOST_ITEMS))
async def list_conversations(call: Call) -> PageOf[KeptConversation]:
    """The conversations that are kept, the newest first."""
    return await own_page(call, call.app[STORE].conversations.page, _object, 20, MOST_ITEMS)


@ROUTES.get("/v1/conversations/{id}")
async def get_conversation(call: Call) -> KeptConversation:
    """A kept conversation."""
    return _object(await own(call, call.app[STORE].conversations.get))


@ROUTES.post("/v1/conversations/{id}")
async def update_conversation(call: Call, body: UpdateConversationRequest) -> KeptConversation:
    """Replace the metadata of a conversation."""
    return _object(await own(call, partial(call.app[STORE].conversations.describe, metadata=body.metadata)))


@ROUTES.delete("/v1/conversations/{id}")
async def delete_conversation(call: Call) -> Deleted:
    """Delete a conversation."""
    return await delete_own(call, call.app[STORE].conversations.delete, "conversation.deleted")


@ROUTES.get("/v1/conversations/{id}/items", answer=PageOf[ResponseItem], query=PAGE_QUERY)
async def list_items(call: Call) -> Stream:
    """The items of a conversation."""
    return await send_items(call, call.app[STORE].conversations.item_page)


@ROUTES.post("/v1/conversations/{id}/items", answer=PageOf[ResponseItem])
async def add_items(call: Call, body: AddItemsRequest) -> Encoded:
    """Add items to a conversation without generating an answer."""
    store = call.app[STORE]
    items = await store.responses.resolve(call.principal.name, body.items)
    added = await store.conversations.add(owner_of(call), call.parameters["id"], items)
    joined = await asyncio.to_thread(lambda: b",".join(item.json for item in added))
    return Encoded(_LIST + joined + _list_end(added, has_more=False))


@ROUTES.get("/v1/conversations/{id}/items/{item}", answer=ResponseItem)
async def get_item(call: Call) -> Encoded:
    """One item of a conversation."""
    find = call.app[STORE].conversations.item
    place = await find(owner_of(call), call.parameters["id"], call.parameters["item"])
    for item in await read_items(call, [place]):
        return Encoded(item.json)
    raise NotFoundError(f"the item {call.parameters['item'][:80]!r} was deleted meanwhile")


@ROUTES.delete("/v1/conversations/{id}/items/{item}")
async def delete_item(call: Call) -> KeptConversation:
    """Remove an item from a conversation."""
    remove = call.app[STORE].conversations.remove_item
    return _object(await remove(owner_of(call), call.parameters["id"], call.parameters["item"]))


async def read_items(call: Call, places: Sequence[Place]) -> list[StoredItem]:
    """Count the items at some places in the memory of a request, and read them.

    Raises OverloadedError if calls hold too much memory, and RefusalError if they are too large.
    """
    call.hold_more("the conversation", sum(place.num_bytes for place in places))
    return await call.app[STORE].histories.turns.read(places, call.principal.name)


async def send_items(call: Call, find: Callable[[str | None, str, Cursor], Awaitable[Page[Place]]]) -> Stream:
    """Return the page of items that the query selects as OpenAI's list object, piece by piece as they are read.

    Raises OverloadedError if calls hold too much memory, and RefusalError if a piece is too large.
    """
    page = await find(owner_of(call), call.parameters["id"], query_cursor(call, 20, MOST_ITEMS))
    call.hold_more("the conversation", piece_bytes(page.items))
    reading = call.app[STORE].histories.turns.pieces(page.items, call.principal.name)

    async def pieces() -> AsyncGenerator[bytes | memoryview, None]:
        yield _LIST
        ends = list[StoredItem]()
        async with aclosing(reading):
            async for items in reading:
                for item in items:
                    yield (b"," if ends else b"") + item.head
                    for start in range(1, len(item.fields), _SENT_BYTES):  # whoever copies long ones stops all threads
                        yield memoryview(item.fields)[start : start + _SENT_BYTES]
                        await asyncio.sleep(0)  # a client that reads fast lets others have their turns
                    ends = [*ends[:1], item]
        yield _list_end(ends, has_more=page.has_more)

    return Stream(pieces(), content_type=JSON_TEXT)


_SENT_BYTES = 1 << 16
_LIST = b'{"object":"list","data":['


def _list_end(items: Sequence[StoredItem], *, has_more: bool) -> bytes:
    return b"]," + to_json(page_ends(items, has_more=has_more))[1:]


def _object(conversation: Conversation) -> KeptConversation:
    created, metadata = int(conversation.created), dict(conversation.metadata)
    return described(KeptConversation, conversation, object="conversation", created_at=created, metadata=metadata)
