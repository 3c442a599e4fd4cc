"""The choices of /v1/chat/completions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from rnn_engine.chat_template.answer import AnswerForm, AnswerReader, Part, Piece
from rnn_engine.interface import EngineLike
from rnn_engine.requests import Finished, GenerateRequest, TextDelta, TokenInfo
from server.formatting.choices import Outcome
from server.formatting.logprobs import ContentTokens, chat_logprobs
from server.schemas.chat import ChatRequest
from server.schemas.chat_answer import (
    AnsweredCall,
    AssistantMessage,
    CallDelta,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    FinishWord,
)


class ChatFormatter:
    """Formats chat choices; choice number i answers `calls[i]`. `form` says what to look for in an answer.

    The white space with which the model begins after the prompt's `Assistant:` is no part of an answer.
    """

    id_prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self, engine: EngineLike, body: ChatRequest, calls: Sequence[GenerateRequest], form: AnswerForm
    ) -> None:
        self._engine = engine
        self._body = body
        self._calls = calls
        self._form = form
        self._readers = [AnswerReader(form) for _ in calls]
        self._tokens = [ContentTokens() for _ in calls]
        self._wants_tokens = body.logprobs or body.return_token_ids

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> ChatChunkChoice:  # noqa: ARG002
        choice = _chunk(index, {"role": "assistant", "content": None, "refusal": None})
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = list(self._calls[index].prompt)
        return choice

    def delta(self, index: int, delta: TextDelta) -> ChatChunkChoice | str | None:
        reader = self._readers[index]
        if reader.is_plain and not self._wants_tokens:
            return delta.text or None
        pieces = reader.feed(delta.text)
        if not self._wants_tokens:
            return self._without_tokens(index, pieces)
        choice = _chunk(index, self._delta_of(index, pieces) or {"content": ""})
        choice["logprobs"] = self._logprobs(self._tokens[index].divide(delta.tokens, pieces))
        if self._body.return_token_ids:
            choice["token_ids"] = [info.token for info in delta.tokens]
        return choice

    def text_chunk(self, index: int, text: str) -> ChatChunkChoice:
        return _chunk(index, {"content": text})

    def closing(self, index: int, finished: Finished) -> ChatChunkChoice:
        reader = self._readers[index]
        pieces = reader.finish()
        choice = _chunk(index, self._delta_of(index, pieces))
        if self._body.logprobs and pieces:
            choice["logprobs"] = self._logprobs(self._tokens[index].divide((), pieces))
        return {**choice, "finish_reason": self._finish_word(reader, finished), "seed": finished.seed}

    def whole(self, index: int, outcome: Outcome, finished: Finished) -> ChatChoice:
        reader = AnswerReader(self._form)
        pieces = [*reader.feed(outcome.text), *reader.finish()]
        entries = ContentTokens().divide(outcome.tokens, pieces) if self._body.logprobs else []
        choice: ChatChoice = {
            "index": index,
            "message": self._message(pieces),
            "logprobs": self._logprobs(entries),
            "finish_reason": self._finish_word(reader, finished),
            "seed": finished.seed,
        }
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = list(self._calls[index].prompt)
            choice["token_ids"] = [info.token for info in outcome.tokens]
        return choice

    def _without_tokens(self, index: int, pieces: Sequence[Piece]) -> ChatChunkChoice | str | None:
        delta = self._delta_of(index, pieces)
        if delta.keys() == {"content"}:
            return delta["content"]
        return _chunk(index, delta) if delta else None

    def _delta_of(self, index: int, pieces: Sequence[Piece]) -> ChatDelta:
        """Return pieces as a stream tells them: calls by number, each new one with an id."""
        delta: ChatDelta = {}
        number = self._readers[index].num_calls - sum(piece.part is Part.CALL for piece in pieces) - 1
        for piece in pieces:
            match piece.part:
                case Part.CONTENT:
                    delta["content"] = (delta.get("content") or "") + piece.text
                case Part.REASONING:
                    delta["reasoning_content"] = delta.get("reasoning_content", "") + piece.text
                case Part.CALL:
                    number += 1
                    self._begin_call(delta, number, piece.text)
                case Part.ARGUMENTS:
                    self._add_arguments(delta, number, piece.text)
        return delta

    def _begin_call(self, delta: ChatDelta, number: int, name: str) -> None:
        if self._body.functions:
            delta["function_call"] = {"name": name, "arguments": ""}
            return
        call: CallDelta = {"index": number, "function": {"name": name, "arguments": ""}}
        delta.setdefault("tool_calls", []).append({**call, "id": _call_id(), "type": "function"})

    def _add_arguments(self, delta: ChatDelta, number: int, text: str) -> None:
        if self._body.functions:
            delta.setdefault("function_call", {"arguments": ""})["arguments"] += text
            return
        calls = delta.setdefault("tool_calls", [])
        if not calls or calls[-1]["index"] != number:
            calls.append({"index": number, "function": {"arguments": ""}})
        calls[-1]["function"]["arguments"] += text

    def _message(self, pieces: Sequence[Piece]) -> AssistantMessage:
        calls: list[AnsweredCall] = []
        for piece in pieces:
            if piece.part is Part.CALL:
                calls.append({"id": _call_id(), "type": "function", "function": {"name": piece.text, "arguments": ""}})
            elif piece.part is Part.ARGUMENTS:
                calls[-1]["function"]["arguments"] += piece.text
        content, thoughts = _joined(pieces, Part.CONTENT), _joined(pieces, Part.REASONING)
        message: AssistantMessage = {"role": "assistant", "content": content, "refusal": None}
        if calls and not content:
            message["content"] = None
        if thoughts:
            message["reasoning_content"] = thoughts
        if calls and self._body.functions:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message

    def _finish_word(self, reader: AnswerReader, finished: Finished) -> FinishWord:
        if reader.num_calls == 0 or finished.reason == "length":
            return finished.reason
        return "function_call" if self._body.functions else "tool_calls"

    def _logprobs(self, tokens: Sequence[TokenInfo]) -> ChatLogprobs | None:
        return chat_logprobs(self._engine, tokens) if self._body.logprobs else None


def _chunk(index: int, delta: ChatDelta) -> ChatChunkChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _joined(pieces: Sequence[Piece], part: Part) -> str:
    return "".join(piece.text for piece in pieces if piece.part is part)


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
