"""OpenAI's responses: answers that the server stores, so that later requests can continue the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from aiohttp import web
from pydantic_core import from_json

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine_server.apis.common.answering import answer_in
from rnn_engine_server.apis.openai.background import BACKGROUND, BACKGROUND_RUN, new_seed, stream_events
from rnn_engine_server.apis.openai.chat import prepare_chat, tell_input_tokens
from rnn_engine_server.apis.openai.kept import (
    CONVERSATIONS,
    MOST_ITEMS,
    PAGE_QUERY,
    call_for_path,
    hold_history,
    item_page,
)
from rnn_engine_server.apis.openai.kept_file import History
from rnn_engine_server.apis.openai.response_dialect import ResponsesDialect
from rnn_engine_server.apis.openai.response_items import KeptItem
from rnn_engine_server.apis.openai.response_schemas import (
    DeletedResponse,
    Response,
    ResponseEvent,
    ResponseItemList,
    ResponseList,
    ResponsesRequest,
)
from rnn_engine_server.apis.openai.schemas import ChatRequest, InputTokens
from rnn_engine_server.auth.admission import PRINCIPAL
from rnn_engine_server.auth.engine import engine_of
from rnn_engine_server.core.bodies import (
    LEASE,
    LEFT_OUT,
    encoded_response,
    hold_more,
    json_response,
    query_count,
    query_page,
    read_body,
    to_json,
)
from rnn_engine_server.core.routing import LIFECYCLE, SETTINGS, Route
from rnn_engine_server.core.workers import work


async def create_response(request: web.Request) -> web.StreamResponse:
    text = bytearray()
    body = await read_body(request, ResponsesRequest, text)
    engine, run = engine_of(request, body.cache_salt), request.get(BACKGROUND_RUN)
    before, given = await _conversation_of(request, body)
    chat = await _chat_of(request, body, (*before.items, *given))
    calls, form, resolved = await prepare_chat(request, engine, chat)
    dialect = ResponsesDialect(engine, body, form, calls[0].sampling, run)
    store, owner = request.app[CONVERSATIONS], request[PRINCIPAL].name
    if body.background and run is None:
        seed = calls[0].sampling.seed
        fields = {"seed": new_seed() if seed is None else seed, "stream": True}
        queue = request.app[BACKGROUND].queue
        kept = await queue(owner, dialect.queued, given, before, text, fields, with_events=body.stream)
        return await stream_events(request, kept, 0) if body.stream else json_response(dialect.queued)
    text = bytearray()  # the request may take long, and needs it no more

    async def keep() -> None:
        assert dialect.response is not None
        if run is not None:
            await request.app[BACKGROUND].finish(run, dialect.response)
        else:
            add = partial(store.add_response, owner, dialect.response, given, before, body.conversation)
            await asyncio.to_thread(add, keep=body.store)

    is_kept = body.store or body.conversation is not None
    answer = await answer_in(dialect, request, chat, calls, resolved, keep=keep if is_kept else None)
    if run is not None and dialect.has_failed and not request.app[LIFECYCLE].closing:
        await keep()
    return answer


async def count_input_tokens(request: web.Request) -> web.Response:
    body = await read_body(request, ResponsesRequest)
    before, given = await _conversation_of(request, body)
    return await tell_input_tokens(request, await _chat_of(request, body, (*before.items, *given)))


async def _conversation_of(request: web.Request, body: ResponsesRequest) -> tuple[History, Sequence[KeptItem]]:
    """Return the conversation before the request, and the request's own items.

    For a response in the background, they are those at the time when it was asked for. Raises NotFoundError if
    something that the request refers to is not stored, and InvalidRequestError if there are no items.
    """
    store, owner = request.app[CONVERSATIONS], request[PRINCIPAL].name
    if (run := request.get(BACKGROUND_RUN)) is not None:
        return await asyncio.to_thread(store.request_of, run.queued["id"])
    before = History()
    if (continued := body.conversation or body.previous_response_id) is not None:
        await hold_history(request, continued)
    if body.conversation is not None:
        before = await asyncio.to_thread(store.conversation_history, owner, body.conversation)
    if body.previous_response_id is not None:
        before = await asyncio.to_thread(store.after_response, owner, body.previous_response_id)
    missing: list[str] | None = None if request.app[SETTINGS].strict else []
    given = await asyncio.to_thread(store.resolve, owner, body.input, missing)
    if missing and not (before.items or given):
        raise NotFoundError(f"no response that is kept has an item {missing[0][:80]!r}")
    if missing:
        request[LEFT_OUT] = request[LEFT_OUT] | {"input.item_reference"}
    if not (before.items or given or "input" in body.model_fields_set):
        raise InvalidRequestError("input", body.input, "at least 1 item, since there is no conversation yet")
    return before, given


async def _chat_of(request: web.Request, body: ResponsesRequest, conversation: Sequence[KeptItem]) -> ChatRequest:
    """Return the chat request that continues the conversation of a request for a response.

    Raises InvalidRequestError if it exceeds the limits.
    """
    hold_more(request, "the conversation", sum(item.num_loaded for item in conversation))
    limits = request.app[SETTINGS].limits

    def make() -> ChatRequest:
        chat = body.chat([item.load() for item in conversation])
        chat.check(limits)
        return chat

    return await work(request, request[LEASE].num_bytes, make)


async def get_response(request: web.Request) -> web.StreamResponse:
    match request.query.get("stream", "false"):
        case "true":
            first = query_count(request, "starting_after", -1, _MOST_EVENTS) + 1
            return await stream_events(
                request, await call_for_path(request, request.app[CONVERSATIONS].response), first
            )
        case "false":
            return await _stored(request)
        case stream:
            raise InvalidRequestError("stream", stream, "true or false")


async def _stored(request: web.Request) -> web.Response:
    """Return the answer with the present state of the response that the path names."""
    found = await call_for_path(request, request.app[CONVERSATIONS].response_json)
    run = request.app[BACKGROUND].find(request.match_info["id"])
    if run is None or not run.has_begun:
        return encoded_response(found)
    begun = await work(request, len(found), lambda: to_json({**from_json(found), "status": "in_progress"}))
    return encoded_response(begun)


async def list_responses(request: web.Request) -> web.Response:
    store, owner = request.app[CONVERSATIONS], request[PRINCIPAL].name
    ids = await asyncio.to_thread(store.response_ids, owner)
    page, has_more = query_page(request, {each: each for each in ids}, 20, MOST_ITEMS)
    found: list[bytes] = []
    for response_id in page:
        with suppress(NotFoundError):  # it was deleted meanwhile
            found.append(await asyncio.to_thread(store.response_json, owner, response_id))
            hold_more(request, "the responses", len(found[-1]))
    ends = {"first_id": page[0] if page else None, "last_id": page[-1] if page else None, "has_more": has_more}
    return encoded_response(b'{"object":"list","data":[' + b",".join(found) + b"]," + to_json(ends)[1:])


async def delete_response(request: web.Request) -> web.Response:
    store, response_id = request.app[CONVERSATIONS], request.match_info["id"]
    await request.app[BACKGROUND].cancel(await call_for_path(request, store.response))
    await call_for_path(request, store.delete_response)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(request: web.Request) -> web.Response:
    kept, response_id = await call_for_path(request, request.app[CONVERSATIONS].response), request.match_info["id"]
    if not from_json(kept.body)["background"]:
        raise InvalidRequestError("response_id", response_id, "a response that was asked for with `background`")
    await request.app[BACKGROUND].cancel(kept)
    return await _stored(request)


async def input_items(request: web.Request) -> web.Response:
    await hold_history(request, request.match_info["id"])
    items = await call_for_path(request, request.app[CONVERSATIONS].response_input)
    return encoded_response(await asyncio.to_thread(item_page, request, items))


_ID = "/v1/responses/{id}"
_MOST_EVENTS = 2**31

ROUTES = (
    Route(
        "POST",
        "/v1/responses",
        create_response,
        "Continue a conversation and keep the response, as OpenAI's API does.",
        Response,
        request=ResponsesRequest,
        chunk=ResponseEvent,
        also=("/responses",),
    ),
    Route(
        "POST",
        "/v1/responses/input_tokens",
        count_input_tokens,
        "The number of tokens that the model would read for a response, without running it.",
        InputTokens,
        request=ResponsesRequest,
        also=("/responses/input_tokens",),
    ),
    Route(
        "GET",
        "/v1/responses",
        list_responses,
        "The responses that are kept, the newest first.",
        ResponseList,
        query=PAGE_QUERY,
        uses_model=False,
    ),
    Route(
        "GET",
        _ID,
        get_response,
        "A response that is kept.",
        Response,
        chunk=ResponseEvent,
        query={
            "stream": "With `true`, the answer is the stream of a response that was asked for with `background` and "
            "`stream`.",
            "starting_after": "The `sequence_number` of an event of the stream: return only the events after it.",
        },
        uses_model=False,
    ),
    Route(
        "DELETE",
        _ID,
        delete_response,
        "Delete a response; responses that continue it stay.",
        DeletedResponse,
        uses_model=False,
    ),
    Route(
        "POST",
        f"{_ID}/cancel",
        cancel_response,
        "Cancel a response that runs in the background. One that has ended stays as it is.",
        Response,
        uses_model=False,
    ),
    Route(
        "GET",
        f"{_ID}/input_items",
        input_items,
        "The items that were new in the response's request.",
        ResponseItemList,
        query=PAGE_QUERY,
        uses_model=False,
    ),
)
