"""ai00's own routes for completions and chats, with its defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.requests import TextDelta
from rnn_engine.sampling.params import Ai00Nucleus
from rnn_engine_server.apis.common.generation import JoinedPrompts, Stop
from rnn_engine_server.apis.openai.chat import converse
from rnn_engine_server.apis.openai.completions import CompletionDialect, complete
from rnn_engine_server.apis.openai.dialect import Choice
from rnn_engine_server.apis.openai.schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatRequest,
    Completion,
    CompletionChoice,
    CompletionRequest,
)
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Answer, RouteTable

_NUCLEUS = Ai00Nucleus()
_PRESENCE = "Subtracted from the logit of each token that has occurred, unless `sampler` sets it."
_FREQUENCY = "Subtracted for each time a token has occurred, unless `sampler` sets it."


class Ai00CompletionRequest(CompletionRequest):
    """A request to continue a text or tokens. Fields of completions mean the same here; some have ai00's defaults."""

    keeps_null: ClassVar = frozenset({"stop"})

    prompt: JoinedPrompts = Field(
        default=("",),
        description="What to continue. The texts of a list are joined to one; a list of lists of token ids makes a "
        "list of choices.",
    )
    stop: Stop = Field(default=("\n\n",), description="Texts before which the answer ends; null for none.")
    presence_penalty: float = Field(default=_NUCLEUS.presence_penalty, description=_PRESENCE)
    frequency_penalty: float = Field(default=_NUCLEUS.frequency_penalty, description=_FREQUENCY)


class Ai00ChatRequest(ChatRequest):
    """A request to continue a conversation. Fields of chats mean the same here, except `stop` and the penalties."""

    keeps_null: ClassVar = frozenset({"stop"})

    stop: Stop = Field(
        default=(),
        description="Texts before which the answer ends, in place of those of the chat template; null for none.",
    )

    presence_penalty: float = Field(default=_NUCLEUS.presence_penalty, description=_PRESENCE)
    frequency_penalty: float = Field(default=_NUCLEUS.frequency_penalty, description=_FREQUENCY)

    @property
    def adds_template_stop(self) -> bool:
        return "stop" not in self.model_fields_set


class Ai00TextDelta(TypedDict):
    content: NotRequired[str]


class Ai00CompletionChoice(CompletionChoice):
    """One choice in an event of a completion's stream. `delta` repeats the choice's text, as ai00 does."""

    delta: Ai00TextDelta


class Ai00CompletionChunk(Completion):
    """One event of a completion's stream, with ai00's field `delta` in each choice."""

    choices: list[Ai00CompletionChoice]  # type: ignore[misc]


class Ai00CompletionDialect(CompletionDialect):
    """Formats completions for ai00's clients: a field `delta` in each chunk of a stream repeats the chunk's text."""

    def delta(self, index: int, delta: TextDelta) -> CompletionChoice | None:
        choice = super().delta(index, delta)
        return self.text_chunk(index, choice) if isinstance(choice, str) else choice

    def chunk(self, choices: Sequence[Choice], extra: Mapping[str, object]) -> Mapping[str, object]:
        repeated = [{**each, "delta": {} if each["finish_reason"] else {"content": each["text"]}} for each in choices]
        return super().chunk(repeated, extra)


ROUTES = RouteTable()


@ROUTES.post("/api/oai/completions", answer=Completion, chunk=Ai00CompletionChunk)
async def completions(call: Call, body: Ai00CompletionRequest) -> Answer:
    """Continue a text, as ai00 does: the texts of a list are joined to one."""
    return await complete(call, body, Ai00CompletionDialect)


@ROUTES.post("/api/oai/chat/completions", answer=ChatCompletion, chunk=ChatCompletionChunk)
async def chat_completions(call: Call, body: Ai00ChatRequest) -> Answer:
    """Continue a conversation, with ai00's defaults."""
    return await converse(call, body)
