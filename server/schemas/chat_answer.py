"""The answers of /v1/chat/completions."""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from server.schemas.error import ErrorDetail
from server.schemas.state_entry import StateEntry
from server.schemas.timings import PromptProgress, Timings
from server.schemas.usage import Usage

FinishWord: TypeAlias = Literal["stop", "length", "tool_calls", "function_call"]


class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """`content` has the tokens of the message's content, of which the first and the last may be cut to it."""

    content: list[ChatTokenLogprob]
    refusal: None


class AnsweredFunction(TypedDict):
    name: str
    arguments: str


class AnsweredCall(TypedDict):
    """A call that the client is asked to make. `arguments` are JSON by the tool's schema, unless the answer is cut."""

    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AssistantMessage(TypedDict):
    """`content` is null where there are calls alone. `reasoning_content` is what the model thought before it."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[AnsweredCall]]
    function_call: NotRequired[AnsweredFunction]


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord
    seed: int
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class Verbose(TypedDict):
    """What `verbose` asks for: the text that the model read."""

    prompt: str


_VerboseField = TypedDict("_VerboseField", {"__verbose": NotRequired[Verbose]})  # no name for a class's body


class ChatCompletion(_VerboseField):
    """The answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]
    timings: NotRequired[Timings]


class InputTokens(TypedDict):
    """How many tokens the prompt of a conversation has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """More of the call number `index`; its first piece has its id and the tool's name."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict):
    """More of the message. The first one has its role, and null as `content`."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    refusal: NotRequired[None]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallDelta]]
    function_call: NotRequired[FunctionDelta]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord | None
    seed: NotRequired[int]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class ChatCompletionChunk(TypedDict):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[PromptProgress]
