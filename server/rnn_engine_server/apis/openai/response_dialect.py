"""Format answers as OpenAI's responses: items in one object, or the stream events that report how they grow."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import accumulate, count
from typing import Any, Literal, TypeAlias

from rnn_engine.chat_template.answer import AnswerPart, Piece
from rnn_engine.operations.chat_prompt import ToolChoice
from rnn_engine.requests import Event, Finished, PromptProgress, TextDelta, TokenInfo
from rnn_engine_server.apis.common.answering import Dialect, Prepared
from rnn_engine_server.apis.openai.background import BackgroundRun
from rnn_engine_server.apis.openai.dialect import ContentTokens, chat_logprobs
from rnn_engine_server.apis.openai.response_schemas import ResponsesRequest, ResponseUsage, response_usage
from rnn_engine_server.apis.openai.schemas import ChatRequest, ChatTokenLogprob
from rnn_engine_server.core import handlers
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.handlers import TYPED_SSE

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
        item: dict[str, Any] = {
            "id": f"{_PREFIX[kind]}_{self._key}{number:04x}",
            "type": kind,
            "status": "in_progress",
        }
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
