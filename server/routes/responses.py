"""OpenAI's responses: answers that are kept, and conversations that go on from them."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from rnn_engine.errors import InvalidRequestError
from server.answer import answer_in
from server.formatting.responses import ResponsesDialect
from server.http.bodies import json_response, read_body
from server.http.context import PRINCIPAL, RESPONSES, SETTINGS, engine_of
from server.http.query import query_count
from server.http.routing import Route
from server.routes.chat import prepare_chat
from server.schemas.error import ErrorBody
from server.schemas.responses.answer import DeletedResponse, Response, ResponseEvent, ResponseItemList
from server.schemas.responses.request import ResponsesRequest

_MOST_ITEMS = 100  # of a page


async def create_response(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, ResponsesRequest)
    engine = engine_of(request, body.cache_salt)
    store, owner = request.app[RESPONSES], request[PRINCIPAL].name
    previous = body.previous_response_id
    before = () if previous is None else store.get(owner, previous).conversation
    given = store.resolve(owner, body.input)
    chat = body.chat((*before, *given))
    chat.check(request.app[SETTINGS].limits)
    calls, form, resolved = await prepare_chat(request, engine, chat)
    keep = partial(store.put, owner, given=given, before=before) if body.store else None
    return await answer_in(
        ResponsesDialect(engine, body, form, calls[0].sampling, keep), request, chat, calls, resolved
    )


async def get_response(request: web.Request) -> web.Response:
    kept = request.app[RESPONSES].get(request[PRINCIPAL].name, request.match_info["id"])
    return json_response(kept.body)


async def delete_response(request: web.Request) -> web.Response:
    response_id = request.match_info["id"]
    request.app[RESPONSES].delete(request[PRINCIPAL].name, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(request: web.Request) -> web.Response:
    response_id = request.match_info["id"]
    request.app[RESPONSES].get(request[PRINCIPAL].name, response_id)
    raise InvalidRequestError("response_id", response_id, "a response that still runs; this one has ended")


async def input_items(request: web.Request) -> web.Response:
    kept = request.app[RESPONSES].get(request[PRINCIPAL].name, request.match_info["id"])
    items = list(kept.input)
    if request.query.get("order", "desc") != "asc":
        items.reverse()
    ids = [item["id"] for item in items]
    after = request.query.get("after")
    if after is not None and after not in ids:
        raise InvalidRequestError("after", after, "the id of an item of this response")
    start = 0 if after is None else ids.index(after) + 1
    limit = query_count(request, "limit", 20, _MOST_ITEMS)
    page = items[start : start + limit]
    return json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + limit < len(items),
        }
    )


_ID = "/v1/responses/{id}"

ROUTES = (
    Route(
        "POST",
        "/v1/responses",
        create_response,
        "Continue a conversation, which is kept, as OpenAI's responses do.",
        Response,
        request=ResponsesRequest,
        chunk=ResponseEvent,
        ai00_paths=False,
        also=("/responses",),
    ),
    Route("GET", _ID, get_response, "A response that is kept.", Response, ai00_paths=False, uses_model=False),
    Route(
        "DELETE",
        _ID,
        delete_response,
        "Keep a response no longer; those that go on from it stay.",
        DeletedResponse,
        ai00_paths=False,
        uses_model=False,
    ),
    Route(
        "POST",
        f"{_ID}/cancel",
        cancel_response,
        "Refused with the reason: a response that is kept has ended. A client that closes its connection ends one.",
        ErrorBody,
        ai00_paths=False,
        uses_model=False,
    ),
    Route(
        "GET",
        f"{_ID}/input_items",
        input_items,
        "The items that were new in the request of a response.",
        ResponseItemList,
        query={
            "limit": f"How many items, 20 unless told, at most {_MOST_ITEMS}.",
            "order": "`desc`, which is the default, tells the last item first; `asc` the first.",
            "after": "The id of an item: those after it.",
        },
        ai00_paths=False,
        uses_model=False,
    ),
)
