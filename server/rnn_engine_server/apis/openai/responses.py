"""OpenAI's responses: answers that the server stores, so that later requests can continue the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from aiohttp import web
from pydantic_core import from_json

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine_server.apis.common.answering import answer_in
from rnn_engine_server.apis.common.owned import OWNER_QUERY, listed_owner, owner_of, query_cursor
from rnn_engine_server.apis.openai.background import BACKGROUND, BACKGROUND_RUN, new_seed, stream_events
from rnn_engine_server.apis.openai.chat import prepare_chat, tell_input_tokens
from rnn_engine_server.apis.openai.conversations import MOST_ITEMS, PAGE_QUERY, STORE, read_items, send_items
from rnn_engine_server.apis.openai.response_dialect import ResponsesDialect
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
    page_ends,
    query_count,
    query_word,
    read_body,
    to_json,
)
from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.routing import LIFECYCLE, SETTINGS
from rnn_engine_server.core.workers import work
from rnn_engine_server.store.responses import StoredResponse
from rnn_engine_server.store.turns import History, StoredItem

_MOST_EVENTS = 2**31

ROUTES = RouteTable(uses_model=False)


@ROUTES.post(
    "/v1/responses", "/responses", request=ResponsesRequest, answer=Response, chunk=ResponseEvent, uses_model=True
)
async def create_response(request: web.Request) -> web.StreamResponse:
    """Continue a conversation and keep the response, as OpenAI's API does."""
    text = bytearray()
    body = await read_body(request, ResponsesRequest, text)
    engine, run = engine_of(request, body.cache_salt), request.get(BACKGROUND_RUN)
    before, given = await _conversation_of(request, body)
    chat = await _chat_of(request, body, (*before.items, *given))
    calls, form, resolved = await prepare_chat(request, engine, chat)
    dialect = ResponsesDialect(engine, body, form, calls[0].sampling, run)
    owner = request[PRINCIPAL].name
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
            add = request.app[STORE].responses.add
            await add(owner, dialect.response, given, before, body.conversation, keep=body.store)

    is_kept = body.store or body.conversation is not None
    answer = await answer_in(dialect, request, chat, calls, resolved, keep=keep if is_kept else None)
    if run is not None and dialect.has_failed and not request.app[LIFECYCLE].closing:
        await keep()
    return answer


@ROUTES.post("/v1/responses/input_tokens", "/responses/input_tokens", uses_model=True)
async def count_input_tokens(request: web.Request, body: ResponsesRequest) -> InputTokens:
    """The number of tokens that the model would read for a response, without running it."""
    before, given = await _conversation_of(request, body)
    return await tell_input_tokens(request, await _chat_of(request, body, (*before.items, *given)))


async def _conversation_of(request: web.Request, body: ResponsesRequest) -> tuple[History, Sequence[StoredItem]]:
    """Return the conversation before the request, and the request's own items.

    For a response in the background, they are those at the time when it was asked for. Raises NotFoundError if
    something that the request refers to is not stored, and InvalidRequestError if there are no items.
    """
    store, owner = request.app[STORE], request[PRINCIPAL].name
    if (run := request.get(BACKGROUND_RUN)) is not None:
        before, asked = await store.responses.asked(owner, run.queued["id"])
        return await _loaded(request, before), (await _loaded(request, asked)).items
    before = History()
    if body.conversation is not None:
        before = await _loaded(request, await store.conversations.history(owner, body.conversation))
    if body.previous_response_id is not None:
        if not (await store.responses.get(owner, body.previous_response_id)).has_ended:
            name, value = "previous_response_id", body.previous_response_id
            raise InvalidRequestError(name, value, "a response that has ended")
        before = await _loaded(request, await store.responses.history(owner, body.previous_response_id))
    missing: list[str] | None = None if request.app[SETTINGS].strict else []
    given = await store.responses.resolve(owner, body.input, missing)
    if missing and not (before.items or given):
        raise NotFoundError(f"no response that is kept has an item {missing[0][:80]!r}")
    if missing:
        request[LEFT_OUT] = request[LEFT_OUT] | {"input.item_reference"}
    if not (before.items or given or "input" in body.model_fields_set):
        raise InvalidRequestError("input", body.input, "at least 1 item, since there is no conversation yet")
    return before, given


async def _loaded(request: web.Request, history: History) -> History:
    """Read the items of a history. Raises NotFoundError if some were deleted meanwhile."""
    items = await read_items(request, history.places)
    if len(items) < len(history.places):
        raise NotFoundError("what was said before was deleted meanwhile")
    return replace(history, items=items)


async def _chat_of(request: web.Request, body: ResponsesRequest, conversation: Sequence[StoredItem]) -> ChatRequest:
    """Return the chat request that continues the conversation of a request for a response.

    Raises InvalidRequestError if it exceeds the limits.
    """
    held = request[LEASE].num_bytes
    num_loaded = await work(request, held, lambda: sum(item.num_loaded for item in conversation))
    hold_more(request, "the conversation", num_loaded)
    limits = request.app[SETTINGS].limits

    def make() -> ChatRequest:
        chat = body.chat([item.load() for item in conversation])
        chat.check(limits)
        return chat

    return await work(request, request[LEASE].num_bytes, make)


@ROUTES.get(
    "/v1/responses/{id}",
    answer=Response,
    chunk=ResponseEvent,
    query={
        "stream": "With `true`, the answer is the stream of a response that was asked for with `background` and "
        "`stream`.",
        "starting_after": "The `sequence_number` of an event of the stream: return only the events after it.",
    },
)
async def get_response(request: web.Request) -> web.StreamResponse:
    """A response that is kept."""
    found = await _found(request)
    if query_word(request, "stream", ("true", "false"), "false") == "true":
        return await stream_events(request, found, query_count(request, "starting_after", -1, _MOST_EVENTS) + 1)
    return encoded_response(await _stored(request, found))


async def _found(request: web.Request) -> StoredResponse:
    return await request.app[STORE].responses.get(owner_of(request), request.match_info["id"])


async def _stored(request: web.Request, response: StoredResponse) -> bytes:
    """Return the present state of a response as JSON. Raises NotFoundError if it was deleted meanwhile."""
    hold_more(request, "the response", response.num_bytes)
    found = await request.app[STORE].responses.json(response)
    run = request.app[BACKGROUND].find(response.id)
    if run is None or not run.has_begun:
        return found
    return await work(request, len(found), lambda: to_json({**from_json(found), "status": "in_progress"}))


@ROUTES.get("/v1/responses", answer=ResponseList, query=PAGE_QUERY | OWNER_QUERY)
async def list_responses(request: web.Request) -> web.Response:
    """The responses that are kept, the newest first."""
    page = await request.app[STORE].responses.page(listed_owner(request), query_cursor(request, 20, MOST_ITEMS))
    found: list[bytes] = []
    for response in page.items:
        with suppress(NotFoundError):  # it was deleted meanwhile
            found.append(await _stored(request, response))
    ends = to_json(page_ends(page.items, has_more=page.has_more))
    return encoded_response(b'{"object":"list","data":[' + b",".join(found) + b"]," + ends[1:])


@ROUTES.delete("/v1/responses/{id}")
async def delete_response(request: web.Request) -> DeletedResponse:
    """Delete a response; responses that continue it stay."""
    found = await _found(request)
    await request.app[BACKGROUND].cancel(found)
    await request.app[STORE].responses.delete(found.owner, found.id)
    return {"id": found.id, "object": "response", "deleted": True}


@ROUTES.post("/v1/responses/{id}/cancel", answer=Response)
async def cancel_response(request: web.Request) -> web.Response:
    """Cancel a response that runs in the background. One that has ended stays as it is."""
    found = await _found(request)
    if not found.is_background:
        raise InvalidRequestError("response_id", found.id, "a response that was asked for with `background`")
    await request.app[BACKGROUND].cancel(found)
    return encoded_response(await _stored(request, await _found(request)))


@ROUTES.get("/v1/responses/{id}/input_items", answer=ResponseItemList, query=PAGE_QUERY)
async def input_items(request: web.Request) -> web.StreamResponse:
    """The items that were new in the response's request."""
    cursor = query_cursor(request, 20, MOST_ITEMS)
    page = request.app[STORE].responses.input_page
    return await send_items(request, await page(owner_of(request), request.match_info["id"], cursor))
