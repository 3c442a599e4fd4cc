"""Anthropic's API: messages, and the count of a conversation's tokens."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from rnn_engine.chat_template.answer import AnswerPart, Piece, whole_calls
from rnn_engine.requests import Event, Finished, Started, TextDelta
from rnn_engine_server.apis.anthropic.schemas import (
    AnthropicAnswer,
    AnthropicBlock,
    AnthropicError,
    AnthropicErrorDetail,
    AnthropicEvent,
    AnthropicUsage,
    CountTokensRequest,
    MessagesRequest,
    StopReason,
    TokenCount,
)
from rnn_engine_server.apis.common.answering import Dialect, Prepared
from rnn_engine_server.apis.common.messages import call_arguments
from rnn_engine_server.apis.openai.chat import prepare_chat
from rnn_engine_server.apis.openai.schemas import ChatRequest
from rnn_engine_server.core import handlers
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.handlers import TYPED_SSE, Answer, RouteTable

BlockType: TypeAlias = Literal["text", "thinking", "tool_use"]

_BLOCK_OF: Mapping[AnswerPart, BlockType] = {
    AnswerPart.CONTENT: "text",
    AnswerPart.REASONING: "thinking",
    AnswerPart.CALL: "tool_use",
    AnswerPart.ARGUMENTS: "tool_use",
}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicDialect(Dialect[ChatRequest]):
    """Formats an answer as Anthropic's message, or as the events of its stream."""

    stream_form = TYPED_SSE

    def __init__(self, prepared: Prepared[ChatRequest], asked: MessagesRequest) -> None:
        super().__init__(prepared)
        self._stops = frozenset(asked.stop)
        self._omits_thoughts = asked.omits_thoughts
        self._id = f"msg_{uuid.uuid4().hex[:24]}"
        [self._reader], [self._outcome] = self.readers, self.outcomes
        self._blocks = _BlockStream()

    def whole(self, kept: Sequence[int], extra: Mapping[str, object]) -> Mapping[str, object]:  # noqa: ARG002
        pieces = [*self._reader.feed(self._outcome.text), *self._reader.finish()]
        blocks = _folded(self._blocks.tell(self._shown(whole_calls(self._reader, pieces))))
        return {**self._message(blocks, *self._end(self._outcome.end)), **extra}

    def events(self, index: int, event: Event, extra: Mapping[str, object]) -> Iterator[handlers.Event]:  # noqa: ARG002
        match event:
            case Started():
                yield {"type": "message_start", "message": self._message([], None, None)}
                yield self.keep_alive()
            case TextDelta():
                yield from self._blocks.tell(self._shown(self._reader.feed(event.text)))
            case Finished():
                yield from self._blocks.tell(self._shown(self._reader.finish()))
                yield from self._blocks.close(is_cut=self._reader.is_in_call)
                reason, stop = self._end(event)
                delta = {"stop_reason": reason, "stop_sequence": stop}
                yield {"type": "message_delta", "delta": delta, "usage": self._usage, **extra}

    def ending(self) -> Iterator[handlers.Event]:
        yield {"type": "message_stop"}

    def keep_alive(self) -> handlers.Event:
        """Return an event that means nothing."""
        return {"type": "ping"}

    def _message(
        self, blocks: Sequence[AnthropicBlock], reason: StopReason | None, stop: str | None
    ) -> Mapping[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.engine.info.model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": self._usage,
        }

    def _shown(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        if not self._omits_thoughts:
            return pieces
        return [replace(each, text="") if each.part is AnswerPart.REASONING else each for each in pieces]

    @property
    def _usage(self) -> AnthropicUsage:
        cached = self._outcome.cached_tokens
        return {
            "input_tokens": self._outcome.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": self._outcome.num_tokens,
        }

    def _end(self, finished: Finished) -> tuple[StopReason, str | None]:
        """Return the reason why an answer ended, and the client's stop string that ended it, or None."""
        if finished.reason == "length":
            return "max_tokens", None
        if self._reader.num_calls and not self._reader.is_in_call:
            return "tool_use", None
        stop = finished.stop.decode() if isinstance(finished.stop, bytes) else None
        return ("stop_sequence", stop) if stop in self._stops else ("end_turn", None)


class _BlockStream:
    """Converts the pieces of an answer to stream events that start, extend and stop one content block after another.

    The arguments of a call are sent as they come. Those of a call that was cut are no JSON.
    """

    def __init__(self) -> None:
        self._open: BlockType | None = None
        self._number = -1
        self._has_arguments = False  # of the open block's call

    def tell(self, pieces: Sequence[Piece]) -> Iterator[Mapping[str, object]]:
        for piece in pieces:
            kind = _BLOCK_OF.get(piece.part)
            if kind is None:
                continue
            if piece.part is AnswerPart.CALL or kind != self._open:
                yield from self.close()
                self._open, self._number = kind, self._number + 1
                yield {"type": "content_block_start", "index": self._number, "content_block": _new_block(piece)}
            if piece.part is not AnswerPart.CALL and piece.text:
                self._has_arguments = piece.part is AnswerPart.ARGUMENTS
                yield self._extend(_delta(piece))

    def close(self, *, is_cut: bool = False) -> Iterator[Mapping[str, object]]:
        if self._open == "tool_use" and not (is_cut or self._has_arguments):
            yield self._extend({"type": "input_json_delta", "partial_json": "{}"})
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._number}
        self._open, self._has_arguments = None, False

    def _extend(self, delta: Mapping[str, str]) -> Mapping[str, object]:
        return {"type": "content_block_delta", "index": self._number, "delta": delta}


def _folded(events: Iterable[Mapping[str, Any]]) -> list[AnthropicBlock]:
    """Return the content blocks that the events of a stream add up to."""
    blocks: list[AnthropicBlock] = []
    arguments = ""
    for event in events:
        match event:
            case {"content_block": block}:
                blocks.append(block)
                arguments = ""
            case {"delta": {"text": text}}:
                blocks[-1]["text"] += text
            case {"delta": {"thinking": text}}:
                blocks[-1]["thinking"] += text
            case {"delta": {"partial_json": text}}:
                arguments += text
                blocks[-1]["input"] = call_arguments(arguments)
    return blocks


def _new_block(piece: Piece) -> AnthropicBlock:
    """Return a new content block of the kind that `piece` belongs to, without text or arguments."""
    match piece.part:
        case AnswerPart.CALL:
            return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": piece.text, "input": {}}
        case AnswerPart.REASONING:
            return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _delta(piece: Piece) -> Mapping[str, str]:
    if piece.part is AnswerPart.REASONING:
        return {"type": "thinking_delta", "thinking": piece.text}
    if piece.part is AnswerPart.ARGUMENTS:
        return {"type": "input_json_delta", "partial_json": piece.text}
    return {"type": "text_delta", "text": piece.text}


def anthropic_error(failure: Failure) -> tuple[int, AnthropicError]:
    """Return the HTTP status and the body of an error in Anthropic's form."""
    kind = _ERROR_TYPES.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
    detail: AnthropicErrorDetail = {"type": kind, "message": failure.message}
    if failure.param == "thread":
        detail["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return failure.status, {"type": "error", "error": detail}


# Anthropic's API: messages, and the count of their tokens.


ROUTES = RouteTable(error_form=anthropic_error)


@ROUTES.post("/v1/messages", answer=AnthropicAnswer, chunk=AnthropicEvent)
async def messages(call: Call, body: MessagesRequest) -> Answer:
    """Continue a conversation, as Anthropic's API does. Errors have Anthropic's form, too."""
    return await AnthropicDialect(await prepare_chat(call, body.chat), body).answer()


@ROUTES.post("/v1/messages/count_tokens")
async def count_tokens(call: Call, body: CountTokensRequest) -> TokenCount:
    """The number of tokens of a conversation, in the form of Anthropic's API."""
    prepared = await prepare_chat(call, body.chat)
    return {"input_tokens": len(prepared.requests[0].prompt)}
