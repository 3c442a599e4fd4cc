"""The bodies of ai00's own routes for generations, with its defaults."""

from __future__ import annotations

from typing import ClassVar, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.sampling.ai00 import Ai00Nucleus
from server.schemas.chat import ChatRequest
from server.schemas.completions import Completion, CompletionChoice, CompletionRequest
from server.schemas.generation import Stop
from server.schemas.prompt import JoinedPrompts

_NUCLEUS = Ai00Nucleus()
_PRESENCE = "Taken off a token that has occurred, unless `sampler` says it."
_FREQUENCY = "Taken off for each occurrence, unless `sampler` says it."


class Ai00CompletionRequest(CompletionRequest):
    """A text or tokens to continue. The fields of completions mean the same here; some have ai00's defaults."""

    keeps_null: ClassVar = frozenset({"stop"})

    prompt: JoinedPrompts = Field(
        default=("",),
        description="What to continue. A list of texts is one text; a list of lists of token ids makes a list of "
        "choices.",
    )
    stop: Stop = Field(default=("\n\n",), description="Texts before which the answer ends; null for none.")
    presence_penalty: float = Field(default=_NUCLEUS.presence_penalty, description=_PRESENCE)
    frequency_penalty: float = Field(default=_NUCLEUS.frequency_penalty, description=_FREQUENCY)


class Ai00ChatRequest(ChatRequest):
    """A conversation to continue. The fields of chats mean the same here; the penalties have ai00's defaults."""

    presence_penalty: float = Field(default=_NUCLEUS.presence_penalty, description=_PRESENCE)
    frequency_penalty: float = Field(default=_NUCLEUS.frequency_penalty, description=_FREQUENCY)


class TextDelta(TypedDict):
    content: NotRequired[str]


class Ai00CompletionChoice(CompletionChoice):
    """`delta` has the text once more, in the place where ai00 has it."""

    delta: TextDelta


class Ai00CompletionChunk(Completion):
    """One event of a stream."""

    choices: list[Ai00CompletionChoice]  # type: ignore[misc]
