"""Mistral's route that fills in text: here it continues a text, since the model can't fill in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rnn_engine.requests import Finished, TextDelta, TokenInfo
from rnn_engine_server.apis.common.answering import Outcome
from rnn_engine_server.apis.openai.chat import chat_chunk
from rnn_engine_server.apis.openai.completions import prepare_completions
from rnn_engine_server.apis.openai.dialect import ChoicesDialect
from rnn_engine_server.apis.openai.schemas import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    CompletionRequest,
)
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Answer, RouteTable


class FimRequest(CompletionRequest):
    """A text to continue, with Mistral's field names. The fields of completions mean the same here. A `suffix` is
    refused unless it is empty."""

    neutral: ClassVar = {
        "echo": (False,),
        "logprobs": (),
        "prompt_logprobs": (0,),
        "return_token_ids": (False,),
    }


class FimDialect(ChoicesDialect[FimRequest]):
    """Makes completions that are messages of a chat, as Mistral does."""

    id_prefix = "fim"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> ChatChunkChoice:  # noqa: ARG002
        return chat_chunk(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, delta: TextDelta) -> str | None:  # noqa: ARG002
        return delta.text or None

    def text_chunk(self, index: int, text: str) -> ChatChunkChoice:
        return chat_chunk(index, {"content": text})

    def closing(self, index: int, finished: Finished) -> ChatChunkChoice:
        return {**chat_chunk(index, {"content": ""}), "finish_reason": finished.reason, "seed": finished.seed}

    def choice(self, index: int, outcome: Outcome) -> ChatChoice:
        return {
            "index": index,
            "message": {"role": "assistant", "content": outcome.text, "refusal": None},
            "logprobs": None,
            "finish_reason": outcome.end.reason,
            "seed": outcome.end.seed,
        }


ROUTES = RouteTable()


@ROUTES.post("/v1/fim/completions", answer=ChatCompletion, chunk=ChatCompletionChunk)
async def fim_completions(call: Call, body: FimRequest) -> Answer:
    """Continue a text and answer with a message, as Mistral does. A `suffix` is refused: the model can't fill in."""
    return await FimDialect(await prepare_completions(call, body)).answer()
