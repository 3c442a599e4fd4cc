"""OpenAI's conversations, which the server stores. Requests add items to them, and so do responses."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from server.apis.openai.kept import CONVERSATIONS, PAGE_QUERY, RESPONSES, StoredConversation, item_list, item_page
from server.apis.openai.response_items import (
    AddItemsRequest,
    CreateConversationRequest,
    DeletedConversation,
    KeptConversation,
    UpdateConversationRequest,
)
from server.apis.openai.response_schemas import ResponseItem, ResponseItemList
from server.auth.admission import PRINCIPAL
from server.core.bodies import LEASE, encoded_response, json_response, read_body, work
from server.core.routing import Route


async def create_conversation(request: web.Request) -> web.Response:
    body = await read_body(request, CreateConversationRequest)
    responses, store, owner = request.app[RESPONSES], request.app[CONVERSATIONS], request[PRINCIPAL].name

    def keep() -> StoredConversation:
        return store.create(owner, responses.resolve(owner, body.items), body.metadata)

    return _told(await work(request, request[LEASE].num_bytes, keep))


async def get_conversation(request: web.Request) -> web.Response:
    return _told(_conversation(request))


async def update_conversation(request: web.Request) -> web.Response:
    body = await read_body(request, UpdateConversationRequest)
    store, owner = request.app[CONVERSATIONS], request[PRINCIPAL].name
    return _told(store.describe(owner, request.match_info["id"], body.metadata))


async def delete_conversation(request: web.Request) -> web.Response:
    conversation_id = request.match_info["id"]
    request.app[CONVERSATIONS].delete(request[PRINCIPAL].name, conversation_id)
    return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


async def list_items(request: web.Request) -> web.Response:
    found = _conversation(request)
    return encoded_response(await work(request, found.num_bytes, partial(item_page, request, found.items)))


async def add_items(request: web.Request) -> web.Response:
    body = await read_body(request, AddItemsRequest)
    responses, store, owner = request.app[RESPONSES], request.app[CONVERSATIONS], request[PRINCIPAL].name

    def keep() -> bytes:
        return item_list(store.add(owner, request.match_info["id"], responses.resolve(owner, body.items)))

    return encoded_response(await work(request, request[LEASE].num_bytes, keep))


async def get_item(request: web.Request) -> web.Response:
    found = _conversation(request)
    return encoded_response(await work(request, found.num_bytes, lambda: found.item(request.match_info["item"]).json))


async def delete_item(request: web.Request) -> web.Response:
    owner, ids = request[PRINCIPAL].name, request.match_info
    return _told(request.app[CONVERSATIONS].remove_item(owner, ids["id"], ids["item"]))


def _conversation(request: web.Request) -> StoredConversation:
    return request.app[CONVERSATIONS].get(request[PRINCIPAL].name, request.match_info["id"])


def _told(conversation: StoredConversation) -> web.Response:
    told: KeptConversation = {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created,
        "metadata": dict(conversation.metadata),
    }
    return json_response(told)


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
        ai00_paths=False,
        uses_model=False,
    ),
    Route("GET", _ONE, get_conversation, "A kept conversation.", KeptConversation, ai00_paths=False, uses_model=False),
    Route(
        "POST",
        _ONE,
        update_conversation,
        "Replace the metadata of a conversation.",
        KeptConversation,
        request=UpdateConversationRequest,
        ai00_paths=False,
        uses_model=False,
    ),
    Route(
        "DELETE",
        _ONE,
        delete_conversation,
        "Delete a conversation.",
        DeletedConversation,
        ai00_paths=False,
        uses_model=False,
    ),
    Route(
        "GET",
        _ITEMS,
        list_items,
        "The items of a conversation.",
        ResponseItemList,
        query=PAGE_QUERY,
        ai00_paths=False,
        uses_model=False,
    ),
    Route(
        "POST",
        _ITEMS,
        add_items,
        "Add items to a conversation without generating an answer.",
        ResponseItemList,
        request=AddItemsRequest,
        ai00_paths=False,
        uses_model=False,
    ),
    Route("GET", _ITEM, get_item, "One item of a conversation.", ResponseItem, ai00_paths=False, uses_model=False),
    Route(
        "DELETE",
        _ITEM,
        delete_item,
        "Remove an item from a conversation.",
        KeptConversation,
        ai00_paths=False,
        uses_model=False,
    ),
)
