"""OpenAI's conversations, which the server stores. Requests add items to them, and so do responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

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
from rnn_engine_server.core.bodies import encoded_response, hold_more, json_response, page_ends, read_body, to_json
from rnn_engine_server.core.routing import Route
from rnn_engine_server.store.conversations import Conversation
from rnn_engine_server.store.folder import Store
from rnn_engine_server.store.owners import Page
from rnn_engine_server.store.turns import Place, StoredItem

STORE = web.AppKey("store", Store)
"""What clients leave on the server."""
MOST_ITEMS = 100  # of a page
PAGE_QUERY = {
    "limit": f"How many items to return: 20 by default, at most {MOST_ITEMS}.",
    "order": "`desc` (the default) returns the last item first, `asc` the first.",
    "after": "The id of an item: return only the items after it.",
}


async def create_conversation(request: web.Request) -> web.Response:
    body = await read_body(request, CreateConversationRequest)
    store, owner = request.app[STORE], request[PRINCIPAL].name
    items = await store.responses.resolve(owner, body.items)
    return json_response(_object(await store.conversations.create(owner, items, body.metadata)))


async def list_conversations(request: web.Request) -> web.Response:
    cursor = query_cursor(request, 20, MOST_ITEMS)
    found = await request.app[STORE].conversations.page(listed_owner(request), cursor)
    answer: ConversationList = {
        "object": "list",
        "data": [_object(each) for each in found.items],
        **page_ends(found.items, has_more=found.has_more),
    }
    return json_response(answer)


async def get_conversation(request: web.Request) -> web.Response:
    conversations = request.app[STORE].conversations
    return json_response(_object(await conversations.get(owner_of(request), request.match_info["id"])))


async def update_conversation(request: web.Request) -> web.Response:
    body = await read_body(request, UpdateConversationRequest)
    describe = request.app[STORE].conversations.describe
    return json_response(_object(await describe(owner_of(request), request.match_info["id"], body.metadata)))


async def delete_conversation(request: web.Request) -> web.Response:
    conversation_id = request.match_info["id"]
    await request.app[STORE].conversations.delete(owner_of(request), conversation_id)
    return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


async def list_items(request: web.Request) -> web.Response:
    cursor = query_cursor(request, 20, MOST_ITEMS)
    page = request.app[STORE].conversations.item_page
    return await send_items(request, await page(owner_of(request), request.match_info["id"], cursor))


async def add_items(request: web.Request) -> web.Response:
    body = await read_body(request, AddItemsRequest)
    store = request.app[STORE]
    items = await store.responses.resolve(request[PRINCIPAL].name, body.items)
    added = await store.conversations.add(owner_of(request), request.match_info["id"], items)
    return encoded_response(await asyncio.to_thread(_item_list, added, has_more=False))


async def get_item(request: web.Request) -> web.Response:
    find = request.app[STORE].conversations.item
    place = await find(owner_of(request), request.match_info["id"], request.match_info["item"])
    [item] = await read_items(request, [place])
    return encoded_response(item.json)


async def delete_item(request: web.Request) -> web.Response:
    remove = request.app[STORE].conversations.remove_item
    return json_response(_object(await remove(owner_of(request), request.match_info["id"], request.match_info["item"])))


async def read_items(request: web.Request, places: Sequence[Place]) -> list[StoredItem]:
    """Count the items at some places in the memory of a request, and read them.

    Raises OverloadedError if requests hold too much memory, and an aiohttp exception if they are too large.
    """
    hold_more(request, "the conversation", sum(place.num_bytes for place in places))
    return await request.app[STORE].histories.turns.read(places, request[PRINCIPAL].name)


async def send_items(request: web.Request, page: Page[Place]) -> web.Response:
    """Return the answer with the items of a page, as OpenAI's list object."""
    items = await read_items(request, page.items)
    return encoded_response(await asyncio.to_thread(_item_list, items, has_more=page.has_more))


def _item_list(items: Sequence[StoredItem], *, has_more: bool) -> bytes:
    data = b",".join(item.json for item in items)
    return b'{"object":"list","data":[' + data + b"]," + to_json(page_ends(items, has_more=has_more))[1:]


def _object(conversation: Conversation) -> KeptConversation:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created),
        "metadata": dict(conversation.metadata),
    }


_ALL = "/v1/conversations"
_ONE = f"{_ALL}/{{id}}"
_ITEMS = f"{_ONE}/items"
_ITEM = f"{_ITEMS}/{{item}}"

ROUTES = (
    Route(
        "POST",
        _ALL,
        create_conversation,
        "Keep a conversation, which responses can continue and add to.",
        KeptConversation,
        request=CreateConversationRequest,
        uses_model=False,
    ),
    Route(
        "GET",
        _ALL,
        list_conversations,
        "The conversations that are kept, the newest first.",
        ConversationList,
        query=PAGE_QUERY | OWNER_QUERY,
        uses_model=False,
    ),
    Route("GET", _ONE, get_conversation, "A kept conversation.", KeptConversation, uses_model=False),
    Route(
        "POST",
        _ONE,
        update_conversation,
        "Replace the metadata of a conversation.",
        KeptConversation,
        request=UpdateConversationRequest,
        uses_model=False,
    ),
    Route("DELETE", _ONE, delete_conversation, "Delete a conversation.", DeletedConversation, uses_model=False),
    Route(
        "GET",
        _ITEMS,
        list_items,
        "The items of a conversation.",
        ResponseItemList,
        query=PAGE_QUERY,
        uses_model=False,
    ),
    Route(
        "POST",
        _ITEMS,
        add_items,
        "Add items to a conversation without generating an answer.",
        ResponseItemList,
        request=AddItemsRequest,
        uses_model=False,
    ),
    Route("GET", _ITEM, get_item, "One item of a conversation.", ResponseItem, uses_model=False),
    Route("DELETE", _ITEM, delete_item, "Remove an item from a conversation.", KeptConversation, uses_model=False),
)
