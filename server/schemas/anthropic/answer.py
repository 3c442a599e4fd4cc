"""The answers of Anthropic's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from server.schemas.error import ErrorDetail
from server.schemas.state_entry import StateEntry

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class AnthropicBlock(TypedDict):
    """A part of an answer. A `text` has `text`; `thinking`, what the model thought, has `thinking` and an empty
    `signature`; `tool_use`, a call that the client is asked to make, has `id`, `name` and `input`, which is empty where
    the answer was cut."""

    type: Literal["text", "thinking", "tool_use"]
    text: NotRequired[str]
    citations: NotRequired[None]
    thinking: NotRequired[str]
    signature: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    input: NotRequired[Mapping[str, Any]]


class AnthropicUsage(TypedDict):
    """Tokens. Those of the prompt that were known and not run are `cache_read_input_tokens`, and not counted in
    `input_tokens`."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: Literal[0]
    output_tokens: int


class AnthropicAnswer(TypedDict):
    """The answer. `stop_sequence` is the one of `stop_sequences` that ended it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnthropicUsage
    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]


class AnthropicDelta(TypedDict):
    """More of a block: `text_delta`, `thinking_delta` or `input_json_delta`; or how the answer ended."""

    type: NotRequired[Literal["text_delta", "thinking_delta", "input_json_delta"]]
    text: NotRequired[str]
    thinking: NotRequired[str]
    partial_json: NotRequired[str]
    stop_reason: NotRequired[StopReason]
    stop_sequence: NotRequired[str | None]


class AnthropicErrorDetail(TypedDict):
    """What went wrong. `details` tells a client that it has to send whole conversations, without `thread`."""

    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class AnthropicEvent(TypedDict):
    """An event of a stream, which is also named by its `type`. `index` is the number of the block."""

    type: Literal[
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]
    message: NotRequired[AnthropicAnswer]
    index: NotRequired[int]
    content_block: NotRequired[AnthropicBlock]
    delta: NotRequired[AnthropicDelta]
    usage: NotRequired[AnthropicUsage]
    error: NotRequired[AnthropicErrorDetail]
    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]


class AnthropicError(TypedDict):
    """What every answer of Anthropic's routes that is not a success holds."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class TokenCount(TypedDict):
    """The number of tokens of a prompt."""

    input_tokens: int
