"""OpenAI's responses: answers that the server stores, so that later requests can continue the conversation."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate, count
from typing import Any, Literal, TypeAlias

from pydantic_core import from_json

from rnn_engine.chat_template.answer import AnswerPart, Piece
from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine.operations.chat_prompt import ToolChoice
from rnn_engine.requests import Event, Finished, PromptProgress, TextDelta, TokenInfo
from rnn_engine_server.apis.common.answering import Dialect, Prepared
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
from rnn_engine_server.apis.openai.dialect import ContentTokens, chat_logprobs
from rnn_engine_server.apis.openai.response_schemas import (
    Response,
    ResponseEvent,
    ResponseItem,
    ResponsesRequest,
    ResponseUsage,
    response_usage,
)
from rnn_engine_server.apis.openai.schemas import ChatRequest, ChatTokenLogprob, InputTokens
from rnn_engine_server.core import handlers
from rnn_engine_server.core.bodies import query_count, query_word, to_json
from rnn_engine_server.core.call import Call, work
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.handlers import TYPED_SSE, Answer, Encoded, RouteTable, Stream
from rnn_engine_server.core.routing import SETTINGS
from rnn_engine_server.store.responses import StoredResponse
from rnn_engine_server.store.turns import History, StoredItem

ItemType: TypeAlias = Literal["message", "reasoning", "function_call"]

_TYPE_OF: Mapping[AnswerPart, ItemType] = {
    AnswerPart.CONTENT: "message",
    AnswerPart.REASONING: "reasoning",
    AnswerPart.CALL: "function_call",
    AnswerPart.ARGUMENTS: "function_call",
}
_PREFIX: Mapping[ItemType, str] = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_TEXT_EVENT: Mapping[ItemType, str] = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


class ItemWriter:
    """Builds the items of one answer from its pieces, and makes the stream events that report these items.

    `key` is a part of the items' ids.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._is_open = False
        self.items: list[dict[str, Any]] = []

    def tell(self, pieces: Sequence[Piece], logprobs: Sequence[ChatTokenLogprob] = ()) -> Iterator[Mapping[str, Any]]:
        """Add an answer's next pieces to its items, and yield the stream events for them.

        `logprobs` are of the pieces' text.
        """
        waiting = list(logprobs)
        for piece in pieces:
            kind = _TYPE_OF.get(piece.part)
            if kind is None:
                continue
            if not self._is_open or piece.part is AnswerPart.CALL or kind != self.items[-1]["type"]:
                yield from self._close("completed")
                yield from self._open(kind, piece)
            if piece.part is AnswerPart.CONTENT:
                yield self._add_text(piece.text, waiting)
                waiting = []
            elif piece.part is AnswerPart.REASONING:
                yield self._add_text(piece.text)
            elif piece.part is AnswerPart.ARGUMENTS:
                self.items[-1]["arguments"] += piece.text
                yield self._event("response.function_call_arguments.delta", delta=piece.text)

    def finish(self, *, is_cut: bool) -> Iterator[Mapping[str, Any]]:
        """Complete the last item of the answer, and yield the stream events for it.

        An answer without text or calls gets an empty message, unless it was cut.
        """
        if not any(item["type"] != "reasoning" for item in self.items) and not is_cut:
            yield from self._close("completed")
            yield from self._open("message", None)
        yield from self._close("incomplete" if is_cut else "completed")

    def _open(self, kind: ItemType, piece: Piece | None) -> Iterator[Mapping[str, Any]]:
        number = len(self.items)
        item: dict[str, Any] = {"id": f"{_PREFIX[kind]}_{self._key}{number:04x}", "type": kind, "status": "in_progress"}
        if piece is not None and kind == "function_call":
            item |= {"call_id": f"call_{self._key}{number:04x}", "name": piece.text, "arguments": ""}
        else:
            item["content"] = []
            if kind == "message":
                item["role"] = "assistant"
            else:
                item["summary"] = []
        self.items.append(item)
        self._is_open = True
        yield {"type": "response.output_item.added", "output_index": number, "item": deepcopy(item)}
        if kind != "function_call":
            item["content"].append(_empty_part(kind))
            yield self._content_event("response.content_part.added", part=_empty_part(kind))

    def _close(self, status: str) -> Iterator[Mapping[str, Any]]:
        if not self._is_open:
            return
        item = self.items[-1]
        item["status"] = status
        self._is_open = False
        if item["type"] == "function_call":
            name, arguments = item["name"], item["arguments"]
            yield self._event("response.function_call_arguments.done", name=name, arguments=arguments)
        else:
            [part] = item["content"]
            tokens = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._content_event(f"{_TEXT_EVENT[item['type']]}.done", text=part["text"], **tokens)
            yield self._content_event("response.content_part.done", part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _add_text(self, text: str, logprobs: Sequence[ChatTokenLogprob] = ()) -> Mapping[str, Any]:
        item = self.items[-1]
        [part] = item["content"]
        part["text"] += text
        if item["type"] == "message":
            part["logprobs"] += logprobs
            return self._content_event("response.output_text.delta", delta=text, logprobs=logprobs)
        return self._content_event("response.reasoning_text.delta", delta=text)

    def _content_event(self, kind: str, **fields: object) -> Mapping[str, Any]:
        return self._event(kind, content_index=0, **fields)

    def _event(self, kind: str, **fields: object) -> Mapping[str, Any]:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}


def _empty_part(kind: ItemType) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


class ResponsesDialect(Dialect[ChatRequest]):
    """Formats the answers of /v1/responses, whole or as streams.

    `asked` is the request for which the chat was made, and `run` the run of a response in the background.
    """

    stream_form = TYPED_SSE

    def __init__(
        self, prepared: Prepared[ChatRequest], asked: ResponsesRequest, run: BackgroundRun | None = None
    ) -> None:
        super().__init__(prepared)
        self._asked = asked
        self._key = uuid.uuid4().hex if run is None else run.key
        self._created = int(time.time()) if run is None else run.queued["created_at"]
        [self._reader], [self._outcome] = self.readers, self.outcomes
        self._tokens = ContentTokens()
        self._items = ItemWriter(self._key)
        self._thoughts = _ThoughtTokens()
        self._number = count()
        self._is_open = False
        self.response: Mapping[str, Any] | None = None  # once it has ended

    def whole(self, kept: Sequence[int], extra: Mapping[str, object]) -> Mapping[str, object]:  # noqa: ARG002
        list(self._take(self._reader.feed(self._outcome.text), self._outcome.tokens))
        list(self._end(self._outcome.end))
        return self._finished(self._outcome.end, extra)

    def events(self, index: int, event: Event, extra: Mapping[str, object]) -> Iterator[handlers.Event]:  # noqa: ARG002
        for told in self._told(event, extra):
            yield {**told, "sequence_number": next(self._number)}

    def failure(self, failure: Failure) -> handlers.Event:
        error = {"code": failure.code or failure.type, "message": failure.message}
        response = {**self._response("failed"), "error": error}
        return {"type": "response.failed", "response": response, "sequence_number": next(self._number)}

    @property
    def queued(self) -> Mapping[str, Any]:
        """The response before it begins to run in the background."""
        return self._response("queued")

    def _told(self, event: Event, extra: Mapping[str, object]) -> Iterator[Mapping[str, Any]]:
        """Yield the stream events for an event of the engine, without their numbers."""
        if not self._is_open:
            self._is_open = True
            for kind in ("response.created", "response.in_progress"):
                yield {"type": kind, "response": self._response("in_progress")}
        times = self._outcome.times(event, with_each=self._asked.tells_times)
        match event:
            case PromptProgress():
                yield {"type": "response.in_progress", "response": self._response("in_progress"), **times}
            case TextDelta():
                for told in self._take(self._reader.feed(event.text), event.tokens):
                    yield {**told, **times}
            case Finished():
                yield from self._end(event)
                response = self._finished(event, extra)
                yield {"type": f"response.{response['status']}", "response": response, **times}

    def _take(self, pieces: Sequence[Piece], tokens: Sequence[TokenInfo]) -> Iterator[Mapping[str, Any]]:
        self._thoughts.add(pieces, tokens)
        return self._items.tell(pieces, self._logprobs(pieces, tokens))

    def _end(self, finished: Finished) -> Iterator[Mapping[str, Any]]:
        yield from self._take(self._reader.finish(), ())
        yield from self._items.finish(is_cut=finished.reason == "length" or self._reader.is_in_call)

    def _logprobs(self, pieces: Sequence[Piece], tokens: Sequence[TokenInfo]) -> Sequence[ChatTokenLogprob]:
        if not self._asked.wants_logprobs:
            return ()
        return chat_logprobs(self.engine, self._tokens.divide(tokens, pieces))["content"]

    def _finished(self, finished: Finished, extra: Mapping[str, object]) -> Mapping[str, Any]:
        """Make the complete response object, and return it."""
        is_cut = finished.reason == "length"
        self.response = {
            **self._response("incomplete" if is_cut else "completed"),
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._items.items,
            "usage": self._usage,
            **extra,
        }
        return self.response

    def _response(self, status: str) -> Mapping[str, Any]:
        """Return the fields of a response object with this `status`, still without output and usage."""
        body, sampling = self._asked, self.prepared.requests[0].sampling
        return {
            "id": f"resp_{self._key}",
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "background": body.background,
            "conversation": None if body.conversation is None else {"id": body.conversation},
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_tokens,
            "metadata": body.metadata,
            "model": self.engine.info.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": body.store,
            "temperature": sampling.temperature,
            "text": {"format": body.text.format},
            "tool_choice": _choice_word(body.tool_choice or ToolChoice("auto")),
            "tools": [tool.model_dump() for tool in body.tools],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    @property
    def _usage(self) -> ResponseUsage:
        outcome = self._outcome
        return response_usage(outcome.prompt_tokens, outcome.cached_tokens, outcome.num_tokens, self._thoughts.count)


class _ThoughtTokens:
    """Counts an answer's tokens up to the end of its last thought, for the field `reasoning_tokens`."""

    def __init__(self) -> None:
        self._sizes: list[int] = []  # of all tokens in bytes
        self._read = 0  # bytes of all pieces
        self._end = 0  # of the last thought in bytes

    def add(self, pieces: Sequence[Piece], tokens: Sequence[TokenInfo]) -> None:
        self._sizes += [len(info.data) for info in tokens]
        for piece in pieces:
            self._read += len(piece.text.encode())
            if piece.part is AnswerPart.REASONING:
                self._end = self._read

    @property
    def count(self) -> int:
        ends = list(accumulate(self._sizes, initial=0))
        return sum(start < self._end for start in ends[:-1])


def _choice_word(choice: ToolChoice) -> str | Mapping[str, Any]:
    """Return a choice of tools in the form of OpenAI's field `tool_choice`: a word or an object."""
    if choice.names is None:
        return choice.mode
    tools = [{"type": "function", "name": name} for name in choice.names]
    if choice.mode == "required" and len(tools) == 1:
        return tools[0]
    return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}


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
    return await send_items(call, call.app[STORE].responses.input_page)
