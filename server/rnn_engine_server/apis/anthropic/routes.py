"""Anthropic's API: messages, and the count of a conversation's tokens."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from rnn_engine.chat_template.answer import AnswerForm, AnswerPart, AnswerReader, Piece, whole_calls
from rnn_engine.interface import EngineInfo
from rnn_engine.requests import Event, Finished, PromptProgress, PromptScored, Started, TextDelta
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
from rnn_engine_server.apis.common.answering import Dialect, Ended, answer_in
from rnn_engine_server.apis.common.messages import call_arguments
from rnn_engine_server.apis.openai.chat import prepare_chat
from rnn_engine_server.auth.engine import engine_of
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.handlers import Answer, RouteTable, encode_event
from rnn_engine_server.core.schema import Usage

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


class AnthropicDialect(Dialect):
    """Formats an answer as Anthropic's message, or as the events of its stream.

    `form` says which parts, such as thoughts and calls, to look for in the answer. `stops` are the client's own stop
    strings. `omits_thoughts` leaves the blocks of thoughts empty.
    """

    def __init__(
        self, info: EngineInfo, form: AnswerForm, stops: Sequence[str], *, omits_thoughts: bool = False
    ) -> None:
        self._model = info.model
        self._form = form
        self._stops = frozenset(stops)
        self._omits_thoughts = omits_thoughts
        self._id = f"msg_{uuid.uuid4().hex[:24]}"
        self._reader = AnswerReader(form)
        self._blocks = _BlockStream()
        self._started: Started | None = None

    def whole(self, ended: Ended) -> Mapping[str, object]:
        outcome = ended.first
        reader = AnswerReader(self._form)
        pieces = [*reader.feed(outcome.text), *reader.finish()]
        blocks = _blocks(self._shown(whole_calls(reader, pieces)))
        reason, stop = self._end(reader, outcome.end)
        return {**self._message(blocks, reason, stop, _usage(outcome.started, outcome.end)), **ended.extra}

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:  # noqa: ARG002
        match event:
            case Started():
                self._started = event
                message = self._message([], None, None, _usage(event, None))
                return _encode({"type": "message_start", "message": message}) + ping()
            case TextDelta():
                return b"".join(map(_encode, self._blocks.tell(self._shown(self._reader.feed(event.text)))))
            case Finished():
                blocks = b"".join(
                    map(
                        _encode,
                        [
                            *self._blocks.tell(self._shown(self._reader.finish())),
                            *self._blocks.close(is_cut=self._reader.is_in_call),
                        ],
                    )
                )
                return blocks + _encode({**self._last(event), **extra})
            case PromptProgress() | PromptScored():
                return b""

    def ending(self, usage: Usage) -> bytes:  # noqa: ARG002
        return _encode({"type": "message_stop"})

    def failure(self, failure: Failure) -> bytes:
        return _encode(error_body(failure))

    def _message(
        self, blocks: Sequence[AnthropicBlock], reason: StopReason | None, stop: str | None, usage: AnthropicUsage
    ) -> Mapping[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }

    def _shown(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        if not self._omits_thoughts:
            return pieces
        return [replace(each, text="") if each.part is AnswerPart.REASONING else each for each in pieces]

    def _last(self, finished: Finished) -> AnthropicEvent:
        reason, stop = self._end(self._reader, finished)
        return {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop},
            "usage": _usage(self._started, finished),
        }

    def _end(self, reader: AnswerReader, finished: Finished) -> tuple[StopReason, str | None]:
        """Return the reason why an answer ended, and the client's stop string that ended it, or None."""
        if finished.reason == "length":
            return "max_tokens", None
        if reader.num_calls and not reader.is_in_call:
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


def _blocks(pieces: Sequence[Piece]) -> list[AnthropicBlock]:
    """Return the content blocks of an answer that is not streamed, made from its `pieces`."""
    blocks: list[AnthropicBlock] = []
    arguments = ""
    for piece in pieces:
        kind = _BLOCK_OF.get(piece.part)
        if kind is None:
            continue
        if piece.part is AnswerPart.CALL or not blocks or blocks[-1]["type"] != kind:
            blocks.append(_new_block(piece))
            arguments = ""
        match piece.part:
            case AnswerPart.CONTENT:
                blocks[-1]["text"] += piece.text
            case AnswerPart.REASONING:
                blocks[-1]["thinking"] += piece.text
            case AnswerPart.ARGUMENTS:
                arguments += piece.text
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


def _usage(started: Started | None, finished: Finished | None) -> AnthropicUsage:
    prompt, cached = (0, 0) if started is None else (started.prompt_tokens, started.cached_tokens)
    return {
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": 0 if finished is None else finished.completion_tokens,
    }


def _encode(event: Mapping[str, object]) -> bytes:
    return encode_event(event, str(event["type"]))


def ping() -> bytes:
    """Return an event that means nothing."""
    return _encode({"type": "ping"})


def anthropic_error(failure: Failure) -> tuple[int, AnthropicError]:
    """Return the HTTP status and the body of an error in Anthropic's form."""
    return failure.status, error_body(failure)


def error_body(failure: Failure) -> AnthropicError:
    """Return the body of an error in Anthropic's form."""
    kind = _ERROR_TYPES.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
    detail: AnthropicErrorDetail = {"type": kind, "message": failure.message}
    if failure.param == "thread":
        detail["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": detail}


# Anthropic's API: messages, and the count of their tokens.


ROUTES = RouteTable(error_form=anthropic_error)


@ROUTES.post("/v1/messages", answer=AnthropicAnswer, chunk=AnthropicEvent)
async def messages(call: Call, body: MessagesRequest) -> Answer:
    """Continue a conversation, as Anthropic's API does. Errors have Anthropic's form, too."""
    engine = engine_of(call, body.cache_salt)
    calls, form, resolved = await prepare_chat(call, engine, body.chat)
    dialect = AnthropicDialect(engine.info, form, body.stop, omits_thoughts=body.omits_thoughts)
    return await answer_in(dialect, call, body.chat, calls, resolved, keep_alive=ping)


@ROUTES.post("/v1/messages/count_tokens")
async def count_tokens(call: Call, body: CountTokensRequest) -> TokenCount:
    """The number of tokens of a conversation, in the form of Anthropic's API."""
    [asked], _, _ = await prepare_chat(call, engine_of(call, body.cache_salt), body.chat)
    return {"input_tokens": len(asked.prompt)}
