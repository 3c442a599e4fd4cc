"""OpenAI's responses: answers that are kept, and conversations that go on from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from rnn_engine.errors import InvalidRequestError
from server.answer import answer_in
from server.formatting.responses import ResponsesDialect
from server.http.bodies import encoded_response, hold_more, json_response, read_body
from server.http.context import CONVERSATIONS, LEASE, PRINCIPAL, RESPONSES, SETTINGS, engine_of
from server.http.query import PAGE_QUERY, item_page
from server.http.routing import Route
from server.http.work import work
from server.routes.chat import prepare_chat, tell_input_tokens
from server.schemas.chat import ChatRequest
from server.schemas.chat_answer import InputTokens
from server.schemas.error import ErrorBody
from server.schemas.responses.answer import DeletedResponse, Response, ResponseEvent, ResponseItemList
from server.schemas.responses.items import KeptItem
from server.schemas.responses.request import ResponsesRequest


async def create_response(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, ResponsesRequest)
    engine = engine_of(request, body.cache_salt)
    before, given = await _conversation_of(request, body)
    chat = await _chat_of(request, body, (*before, *given))
    calls, form, resolved = await prepare_chat(request, engine, chat)
    keep = partial(_keep, request, body, before, given)
    return await answer_in(
        ResponsesDialect(engine, body, form, calls[0].sampling, keep), request, chat, calls, resolved
    )


async def count_input_tokens(request: web.Request) -> web.Response:
    body = await read_body(request, ResponsesRequest)
    before, given = await _conversation_of(request, body)
    return await tell_input_tokens(request, await _chat_of(request, body, (*before, *given)))


async def _conversation_of(
    request: web.Request, body: ResponsesRequest
) -> tuple[Sequence[KeptItem], Sequence[KeptItem]]:
    """Return the items before those of the request, and its own. Raises NotFoundError or InvalidRequestError."""
    before = _conversation_before(request, body)
    resolve = partial(request.app[RESPONSES].resolve, request[PRINCIPAL].name, body.input)
    given = await work(request, request[LEASE].num_bytes, resolve)
    if not (before or given):
        raise InvalidRequestError("input", body.input, "at least 1 item where there is no conversation yet")
    return before, given


async def _chat_of(request: web.Request, body: ResponsesRequest, conversation: Sequence[KeptItem]) -> ChatRequest:
    """Return the chat that continues a conversation. Raises InvalidRequestError for what is beyond the limits."""
    hold_more(request, "the conversation", sum(item.num_loaded for item in conversation))
    limits = request.app[SETTINGS].limits

    def make() -> ChatRequest:
        chat = body.chat([item.load() for item in conversation])
        chat.check(limits)
        return chat

    return await work(request, request[LEASE].num_bytes, make)


def _conversation_before(request: web.Request, body: ResponsesRequest) -> Sequence[KeptItem]:
    """Return the items of what the request goes on with. Raises NotFoundError."""
    owner = request[PRINCIPAL].name
    if body.conversation is not None:
        return request.app[CONVERSATIONS].get(owner, body.conversation).items
    if body.previous_response_id is not None:
        return request.app[RESPONSES].get(owner, body.previous_response_id).conversation
    return ()


def _keep(
    request: web.Request,
    body: ResponsesRequest,
    before: Sequence[KeptItem],
    given: Sequence[KeptItem],
    response: Mapping[str, Any],
) -> None:
    """Keep a response, and add it to its conversation, as far as the request wants it."""
    owner = request[PRINCIPAL].name
    if body.conversation is not None:
        said = map(KeptItem.of, response["output"])
        request.app[CONVERSATIONS].add_answer(owner, body.conversation, (*given, *said))
    if body.store:
        request.app[RESPONSES].put(owner, response, given, before)


async def get_response(request: web.Request) -> web.Response:
    if (stream := request.query.get("stream", "false")) != "false":
        raise InvalidRequestError("stream", stream, "false, since a response that is kept has ended")
    kept = request.app[RESPONSES].get(request[PRINCIPAL].name, request.match_info["id"])
    return encoded_response(await work(request, kept.num_bytes, lambda: kept.json))


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
    return encoded_response(await work(request, kept.num_bytes, partial(item_page, request, kept.input)))


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
    Route(
        "POST",
        "/v1/responses/input_tokens",
        count_input_tokens,
        "The number of tokens that the model would read for a response, without running it.",
        InputTokens,
        request=ResponsesRequest,
        ai00_paths=False,
        also=("/responses/input_tokens",),
    ),
    Route(
        "GET",
        _ID,
        get_response,
        "A response that is kept.",
        Response,
        query={"stream": "Only false: a response that is kept has ended."},
        ai00_paths=False,
        uses_model=False,
    ),
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
        query=PAGE_QUERY,
        ai00_paths=False,
        uses_model=False,
    ),
)
