"""The choices of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine.interface import EngineLike
from rnn_engine.requests import Finished, GenerateRequest, TextDelta, TokenInfo
from server.formatting.choices import Outcome
from server.formatting.logprobs import chat_logprobs
from server.schemas.chat import ChatChoice, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatRequest


class ChatFormatter:
    """Formats chat choices; choice number i answers `calls[i]`.

    The white space with which the model begins after the prompt's `Assistant:` is no part of an answer.
    """

    id_prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, engine: EngineLike, body: ChatRequest, calls: Sequence[GenerateRequest]) -> None:
        self._engine = engine
        self._body = body
        self._calls = calls
        self._begun = [False] * len(calls)

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> ChatChunkChoice:
        choice = self._chunk(index, {"role": "assistant", "content": ""}, prompt)
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = list(self._calls[index].prompt)
        return choice

    def delta(self, index: int, delta: TextDelta) -> ChatChunkChoice | str | None:
        text = delta.text if self._begun[index] else delta.text.lstrip()
        self._begun[index] = self._begun[index] or bool(text)
        if not self._body.logprobs and not self._body.return_token_ids:
            return text or None
        choice = self._chunk(index, {"content": text}, delta.tokens)
        if self._body.return_token_ids:
            choice["token_ids"] = [info.token for info in delta.tokens]
        return choice

    def text_chunk(self, index: int, text: str) -> ChatChunkChoice:
        return self._chunk(index, {"content": text}, ())

    def closing(self, index: int, finished: Finished) -> ChatChunkChoice:
        choice = self._chunk(index, {}, ())
        return {**choice, "finish_reason": finished.reason, "seed": finished.seed}

    def whole(self, index: int, outcome: Outcome, finished: Finished) -> ChatChoice:
        choice: ChatChoice = {
            "index": index,
            "message": {"role": "assistant", "content": outcome.text.lstrip(), "refusal": None},
            "logprobs": self._logprobs(outcome.tokens),
            "finish_reason": finished.reason,
            "seed": finished.seed,
        }
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = list(self._calls[index].prompt)
            choice["token_ids"] = [info.token for info in outcome.tokens]
        return choice

    def _chunk(self, index: int, delta: ChatDelta, tokens: Sequence[TokenInfo]) -> ChatChunkChoice:
        logprobs = self._logprobs(tokens) if tokens else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, tokens: Sequence[TokenInfo]) -> ChatLogprobs | None:
        return chat_logprobs(self._engine, tokens) if self._body.logprobs else None
