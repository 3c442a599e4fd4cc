"""OpenAI's responses: answers that the server stores, so that later requests can continue the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pydantic_core import from_json

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine_server.apis.common.owned import (
    Deleted,
    PageOf,
    deleted,
    listed_owner,
    own,
    page_ends,
    page_query,
    query_cursor,
)
from rnn_engine_server.apis.openai.background import BACKGROUND, BackgroundRun, new_seed, stream_events
from rnn_engine_server.apis.openai.chat import prepare_chat, tell_input_tokens
from rnn_engine_server.apis.openai.conversations import MOST_ITEMS, PAGE_QUERY, STORE, read_items, send_items
from rnn_engine_server.apis.openai.response_dialect import ResponsesDialect
from rnn_engine_server.apis.openai.response_schemas import (
    Response,
    ResponseEvent,
    ResponseItem,
    ResponsesRequest,
)
from rnn_engine_server.apis.openai.schemas import ChatRequest, InputTokens
from rnn_engine_server.core.bodies import query_count, query_word, to_json
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Answer, Encoded, RouteTable, Stream
from rnn_engine_server.core.routing import SETTINGS
from rnn_engine_server.core.workers import work
from rnn_engine_server.store.responses import StoredResponse
from rnn_engine_server.store.turns import History, StoredItem

_MOST_EVENTS = 2**31

ROUTES = RouteTable(uses_model=False)


@ROUTES.post("/v1/responses", "/responses", answer=Response, chunk=ResponseEvent, uses_model=True, keeps_text=True)
async def create_response(call: Call, body: ResponsesRequest) -> Answer:
    """Continue a conversation and keep the response, as OpenAI's API does."""
    text, call.text = call.text, b""  # the call may take long, and needs it only here
    run = _run_of(call)
    before, given = await _conversation_of(call, body)
    prepared = await prepare_chat(call, await _chat_of(call, body, (*before.items, *given)))
    dialect = ResponsesDialect(prepared, body, run)
    owner = call.principal.name
    if body.background and run is None:
        seed = prepared.requests[0].sampling.seed
        fields = {"seed": new_seed() if seed is None else seed, "stream": True}
        queue = call.app[BACKGROUND].queue
        kept = await queue(owner, dialect.queued, given, before, text, fields, with_events=body.stream)
        return stream_events(call, kept, 0) if body.stream else Encoded.of(dialect.queued)
    del text

    async def keep() -> None:
        assert dialect.response is not None
        if run is not None:
            await call.app[BACKGROUND].finish(run, dialect.response)
        else:
            add = call.app[STORE].responses.add
            await add(owner, dialect.response, given, before, body.conversation, keep=body.store)

    is_kept = body.store or body.conversation is not None
    return await dialect.answer(keep if is_kept else None)


def _run_of(call: Call) -> BackgroundRun | None:
    """Return the run of a response in the background for which a call is made."""
    return call.origin if isinstance(call.origin, BackgroundRun) else None


@ROUTES.post("/v1/responses/input_tokens", "/responses/input_tokens", uses_model=True)
async def count_input_tokens(call: Call, body: ResponsesRequest) -> InputTokens:
    """The number of tokens that the model would read for a response, without running it."""
    before, given = await _conversation_of(call, body)
    return await tell_input_tokens(call, await _chat_of(call, body, (*before.items, *given)))


async def _conversation_of(call: Call, body: ResponsesRequest) -> tuple[History, Sequence[StoredItem]]:
    """Return the conversation before the request, and the request's own items.

    For a response in the background, they are those at the time when it was asked for. Raises NotFoundError if
    something that the request refers to is not stored, and InvalidRequestError if there are no items.
    """
    store, owner = call.app[STORE], call.principal.name
    if (run := _run_of(call)) is not None:
        before, asked = await store.responses.asked(owner, run.queued["id"])
        return await _loaded(call, before), (await _loaded(call, asked)).items
    before = History()
    if body.conversation is not None:
        before = await _loaded(call, await store.conversations.history(owner, body.conversation))
    if body.previous_response_id is not None:
        if not (await store.responses.get(owner, body.previous_response_id)).has_ended:
            name, value = "previous_response_id", body.previous_response_id
            raise InvalidRequestError(name, value, "a response that has ended")
        before = await _loaded(call, await store.responses.history(owner, body.previous_response_id))
    missing: list[str] | None = None if call.app[SETTINGS].strict else []
    given = await store.responses.resolve(owner, body.input, missing)
    if missing and not (before.items or given):
        raise NotFoundError(f"no response that is kept has an item {missing[0][:80]!r}")
    if missing:
        call.left_out.add("input.item_reference")
    if not (before.items or given or "input" in body.model_fields_set):
        raise InvalidRequestError("input", body.input, "at least 1 item, since there is no conversation yet")
    return before, given


async def _loaded(call: Call, history: History) -> History:
    """Read the items of a history. Raises NotFoundError if some were deleted meanwhile."""
    items = await read_items(call, history.places)
    if len(items) < len(history.places):
        raise NotFoundError("what was said before was deleted meanwhile")
    return replace(history, items=items)


async def _chat_of(call: Call, body: ResponsesRequest, conversation: Sequence[StoredItem]) -> ChatRequest:
    """Return the chat request that continues the conversation of a request for a response.

    Raises InvalidRequestError if it exceeds the limits.
    """
    held = call.lease.num_bytes
    num_loaded = await work(call, held, lambda: sum(item.num_loaded for item in conversation))
    call.hold_more("the conversation", num_loaded)
    limits = call.limits

    def make() -> ChatRequest:
        chat = body.chat([item.load() for item in conversation])
        chat.check(limits)
        return chat

    return await work(call, call.lease.num_bytes, make)


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
async def get_response(call: Call) -> Answer:
    """A response that is kept."""
    found = await own(call, call.app[STORE].responses.get)
    if query_word(call, "stream", ("true", "false"), "false") == "true":
        return stream_events(call, found, query_count(call, "starting_after", -1, _MOST_EVENTS) + 1)
    return Encoded(await _stored(call, found))


async def _stored(call: Call, response: StoredResponse) -> bytes:
    """Return the present state of a response as JSON. Raises NotFoundError if it was deleted meanwhile."""
    call.hold_more("the response", response.num_bytes)
    found = await call.app[STORE].responses.json(response)
    run = call.app[BACKGROUND].find(response.id)
    if run is None or not run.has_begun:
        return found
    return await work(call, len(found), lambda: to_json({**from_json(found), "status": "in_progress"}))


@ROUTES.get("/v1/responses", answer=PageOf[Response], query=page_query("responses", 20, MOST_ITEMS))
async def list_responses(call: Call) -> Encoded:
    """The responses that are kept, the newest first."""
    page = await call.app[STORE].responses.page(listed_owner(call), query_cursor(call, 20, MOST_ITEMS))
    found: list[bytes] = []
    for response in page.items:
        with suppress(NotFoundError):  # it was deleted meanwhile
            found.append(await _stored(call, response))
    ends = to_json(page_ends(page.items, has_more=page.has_more))
    return Encoded(b'{"object":"list","data":[' + b",".join(found) + b"]," + ends[1:])


@ROUTES.delete("/v1/responses/{id}")
async def delete_response(call: Call) -> Deleted:
    """Delete a response; responses that continue it stay."""
    found = await own(call, call.app[STORE].responses.get)
    await call.app[BACKGROUND].delete(found)
    return deleted(found.id, "response")


@ROUTES.post("/v1/responses/{id}/cancel", answer=Response)
async def cancel_response(call: Call) -> Encoded:
    """Cancel a response that runs in the background. One that has ended stays as it is."""
    found = await own(call, call.app[STORE].responses.get)
    if not found.is_background:
        raise InvalidRequestError("response_id", found.id, "a response that was asked for with `background`")
    await call.app[BACKGROUND].cancel(found)
    return Encoded(await _stored(call, await own(call, call.app[STORE].responses.get)))


@ROUTES.get("/v1/responses/{id}/input_items", answer=PageOf[ResponseItem], query=PAGE_QUERY)
async def input_items(call: Call) -> Stream:
    """The items that were new in the response's request."""
    page = partial(call.app[STORE].responses.input_page, cursor=query_cursor(call, 20, MOST_ITEMS))
    return send_items(call, await own(call, page))
