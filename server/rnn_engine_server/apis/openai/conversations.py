"""OpenAI's conversations, which the server stores. Requests add items to them, and so do responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from aiohttp import hdrs, web

from rnn_engine_server.apis.common.owned import OWNER_QUERY, listed_owner, owner_of, query_cursor
from rnn_engine_server.apis.openai.response_items import (
    AddItemsRequest,
    ConversationList,
    CreateConversationRequest,
    DeletedConversation,
    KeptConversation,
    UpdateConversationRequest,
)
from rnn_engine_server.apis.openai.response_schemas import ResponseItem, ResponseItemList
from rnn_engine_server.auth.admission import PRINCIPAL
from rnn_engine_server.core.bodies import encoded_response, hold_more, page_ends, to_json
from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.schema import described
from rnn_engine_server.store.conversations import Conversation
from rnn_engine_server.store.folder import Store
from rnn_engine_server.store.owners import Page
from rnn_engine_server.store.turns import Place, StoredItem, piece_bytes

STORE = web.AppKey("store", Store)
"""What clients leave on the server."""
MOST_ITEMS = 100  # of a page
PAGE_QUERY = {
    "limit": f"How many items to return: 20 by default, at most {MOST_ITEMS}.",
    "order": "`desc` (the default) returns the last item first, `asc` the first.",
    "after": "The id of an item: return only the items after it.",
}


ROUTES = RouteTable(uses_model=False)


@ROUTES.post("/v1/conversations")
async def create_conversation(request: web.Request, body: CreateConversationRequest) -> KeptConversation:
    """Keep a conversation, which responses can continue and add to."""
    store, owner = request.app[STORE], request[PRINCIPAL].name
    items = await store.responses.resolve(owner, body.items)
    return _object(await store.conversations.create(owner, items, body.metadata))


@ROUTES.get("/v1/conversations", query=PAGE_QUERY | OWNER_QUERY)
async def list_conversations(request: web.Request) -> ConversationList:
    """The conversations that are kept, the newest first."""
    cursor = query_cursor(request, 20, MOST_ITEMS)
    found = await request.app[STORE].conversations.page(listed_owner(request), cursor)
    return {
        "object": "list",
        "data": [_object(each) for each in found.items],
        **page_ends(found.items, has_more=found.has_more),
    }


@ROUTES.get("/v1/conversations/{id}")
async def get_conversation(request: web.Request) -> KeptConversation:
    """A kept conversation."""
    conversations = request.app[STORE].conversations
    return _object(await conversations.get(owner_of(request), request.match_info["id"]))


@ROUTES.post("/v1/conversations/{id}")
async def update_conversation(request: web.Request, body: UpdateConversationRequest) -> KeptConversation:
    """Replace the metadata of a conversation."""
    describe = request.app[STORE].conversations.describe
    return _object(await describe(owner_of(request), request.match_info["id"], body.metadata))


@ROUTES.delete("/v1/conversations/{id}")
async def delete_conversation(request: web.Request) -> DeletedConversation:
    """Delete a conversation."""
    conversation_id = request.match_info["id"]
    await request.app[STORE].conversations.delete(owner_of(request), conversation_id)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@ROUTES.get("/v1/conversations/{id}/items", answer=ResponseItemList, query=PAGE_QUERY)
async def list_items(request: web.Request) -> web.StreamResponse:
    """The items of a conversation."""
    cursor = query_cursor(request, 20, MOST_ITEMS)
    page = request.app[STORE].conversations.item_page
    return await send_items(request, await page(owner_of(request), request.match_info["id"], cursor))


@ROUTES.post("/v1/conversations/{id}/items", answer=ResponseItemList)
async def add_items(request: web.Request, body: AddItemsRequest) -> web.Response:
    """Add items to a conversation without generating an answer."""
    store = request.app[STORE]
    items = await store.responses.resolve(request[PRINCIPAL].name, body.items)
    added = await store.conversations.add(owner_of(request), request.match_info["id"], items)
    return encoded_response(_LIST + await asyncio.to_thread(_joined, added) + _list_end(added, has_more=False))


@ROUTES.get("/v1/conversations/{id}/items/{item}", answer=ResponseItem)
async def get_item(request: web.Request) -> web.Response:
    """One item of a conversation."""
    find = request.app[STORE].conversations.item
    place = await find(owner_of(request), request.match_info["id"], request.match_info["item"])
    [item] = await read_items(request, [place])
    return encoded_response(item.json)


@ROUTES.delete("/v1/conversations/{id}/items/{item}")
async def delete_item(request: web.Request) -> KeptConversation:
    """Remove an item from a conversation."""
    remove = request.app[STORE].conversations.remove_item
    return _object(await remove(owner_of(request), request.match_info["id"], request.match_info["item"]))


async def read_items(request: web.Request, places: Sequence[Place]) -> list[StoredItem]:
    """Count the items at some places in the memory of a request, and read them.

    Raises OverloadedError if requests hold too much memory, and an aiohttp exception if they are too large.
    """
    hold_more(request, "the conversation", sum(place.num_bytes for place in places))
    return await request.app[STORE].histories.turns.read(places, request[PRINCIPAL].name)


async def send_items(request: web.Request, page: Page[Place]) -> web.StreamResponse:
    """Send the items of a page as OpenAI's list object, piece by piece as they are read.

    Raises OverloadedError if requests hold too much memory, and an aiohttp exception if a piece is too large.
    """
    hold_more(request, "the conversation", piece_bytes(page.items))
    response, ends = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"}), list[StoredItem]()
    await response.prepare(request)
    if request.method != hdrs.METH_HEAD:
        await response.write(_LIST)
        pieces = request.app[STORE].histories.turns.pieces(page.items, request[PRINCIPAL].name)
        async with aclosing(pieces):
            async for items in pieces:
                for item in items:
                    await response.write((b"," if ends else b"") + item.head)
                    for start in range(1, len(item.fields), _SENT_BYTES):  # whoever copies long ones stops all threads
                        await response.write(memoryview(item.fields)[start : start + _SENT_BYTES])
                        await asyncio.sleep(0)  # a client that reads fast lets others have their turns
                    ends = [*ends[:1], item]
        await response.write(_list_end(ends, has_more=page.has_more))
    await response.write_eof()
    return response


_SENT_BYTES = 1 << 16
_LIST = b'{"object":"list","data":['


def _list_end(items: Sequence[StoredItem], *, has_more: bool) -> bytes:
    return b"]," + to_json(page_ends(items, has_more=has_more))[1:]


def _joined(items: Sequence[StoredItem]) -> bytes:
    return b",".join(item.json for item in items)


def _object(conversation: Conversation) -> KeptConversation:
    created, metadata = int(conversation.created), dict(conversation.metadata)
    return described(KeptConversation, conversation, object="conversation", created_at=created, metadata=metadata)
