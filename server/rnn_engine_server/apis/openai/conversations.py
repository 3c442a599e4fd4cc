"""OpenAI's conversations, which the server stores. Requests add items to them, and so do responses."""

from __future__ import annotations

import asyncio

from aiohttp import web
from pydantic_core import from_json

from rnn_engine_server.apis.openai.kept import (
    CONVERSATIONS,
    PAGE_QUERY,
    call_for_path,
    hold_history,
    item_list,
    item_page,
)
from rnn_engine_server.apis.openai.kept_file import Kept
from rnn_engine_server.apis.openai.response_items import (
    AddItemsRequest,
    CreateConversationRequest,
    DeletedConversation,
    KeptConversation,
    UpdateConversationRequest,
)
from rnn_engine_server.apis.openai.response_schemas import ResponseItem, ResponseItemList
from rnn_engine_server.auth.admission import PRINCIPAL
from rnn_engine_server.core.bodies import encoded_response, json_response, read_body
from rnn_engine_server.core.routing import Route


async def create_conversation(request: web.Request) -> web.Response:
    body = await read_body(request, CreateConversationRequest)
    store, owner = request.app[CONVERSATIONS], request[PRINCIPAL].name

    def keep() -> Kept:
        return store.create(owner, store.resolve(owner, body.items), body.metadata)

    return _told(await asyncio.to_thread(keep))


async def get_conversation(request: web.Request) -> web.Response:
    return _told(await call_for_path(request, request.app[CONVERSATIONS].conversation))


async def update_conversation(request: web.Request) -> web.Response:
    body = await read_body(request, UpdateConversationRequest)
    return _told(await call_for_path(request, request.app[CONVERSATIONS].describe, body.metadata))


async def delete_conversation(request: web.Request) -> web.Response:
    await call_for_path(request, request.app[CONVERSATIONS].delete)
    return json_response({"id": request.match_info["id"], "object": "conversation.deleted", "deleted": True})


async def list_items(request: web.Request) -> web.Response:
    await hold_history(request, request.match_info["id"])
    history = await call_for_path(request, request.app[CONVERSATIONS].conversation_history)
    return encoded_response(await asyncio.to_thread(item_page, request, history.items))


async def add_items(request: web.Request) -> web.Response:
    body = await read_body(request, AddItemsRequest)
    store, owner, conversation_id = request.app[CONVERSATIONS], request[PRINCIPAL].name, request.match_info["id"]

    def keep() -> bytes:
        return item_list(store.add(owner, conversation_id, store.resolve(owner, body.items)))

    return encoded_response(await asyncio.to_thread(keep))


async def get_item(request: web.Request) -> web.Response:
    await hold_history(request, request.match_info["id"])
    item = await call_for_path(request, request.app[CONVERSATIONS].item, request.match_info["item"])
    return encoded_response(item.json)


async def delete_item(request: web.Request) -> web.Response:
    return _told(await call_for_path(request, request.app[CONVERSATIONS].remove_item, request.match_info["item"]))


def _told(conversation: Kept) -> web.Response:
    told: KeptConversation = {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created),
        "metadata": from_json(conversation.body),
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
    Route(
        "DELETE",
        _ONE,
        delete_conversation,
        "Delete a conversation.",
        DeletedConversation,
        uses_model=False,
    ),
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
    Route(
        "DELETE",
        _ITEM,
        delete_item,
        "Remove an item from a conversation.",
        KeptConversation,
        uses_model=False,
    ),
)
