"""The answers of OpenAI's /v1/responses."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from server.schemas.chat_answer import ChatTokenLogprob
from server.schemas.error import ErrorDetail
from server.schemas.state_entry import StateEntry
from server.schemas.timings import PromptProgress, Timings

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class ResponsePart(TypedDict):
    """A part of a message or of thoughts. `logprobs` has the tokens of an answer's text, where they are wanted."""

    type: Literal["input_text", "output_text", "reasoning_text"]
    text: str
    annotations: NotRequired[list[Any]]
    logprobs: NotRequired[list[ChatTokenLogprob]]


class ResponseItem(TypedDict):
    """An item of a conversation. A `message` has `role` and `content`; a `function_call`, which the client is asked to
    make, `call_id`, `name` and `arguments`, which are JSON; its result `call_id` and `output`; `reasoning` has what the
    model thought as `content`. The item that was cut is `incomplete`."""

    id: str
    type: Literal["message", "function_call", "function_call_output", "reasoning"]
    status: ItemStatus
    role: NotRequired[str]
    content: NotRequired[list[ResponsePart]]
    summary: NotRequired[list[Any]]
    call_id: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]
    output: NotRequired[str]


class InputTokensDetails(TypedDict):
    cached_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Tokens. The conversation before is in `input_tokens`, too; what was known of it and not run is cached."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class ConversationId(TypedDict):
    """The conversation to which the items of a response are added."""

    id: str


class Response(TypedDict):
    """The answer. `incomplete` is one that was cut; the fields of the request are told as they were understood."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    conversation: ConversationId | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int
    metadata: dict[str, str]
    model: str
    output: list[ResponseItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]


class ResponseEvent(TypedDict):
    """An event of a stream, which is also named by its `type`: `response.created`, `response.in_progress`, then for
    each item `response.output_item.added`, `response.content_part.added`, `response.output_text.delta` and `.done` (of
    thoughts `response.reasoning_text`, of calls `response.function_call_arguments`), `response.content_part.done`,
    `response.output_item.done`; at last `response.completed`, `response.incomplete` or `response.failed`. Where
    progress is wanted, there are more of `response.in_progress`."""

    type: str
    sequence_number: int
    response: NotRequired[Response]
    prompt_progress: NotRequired[PromptProgress]
    timings: NotRequired[Timings]
    output_index: NotRequired[int]
    content_index: NotRequired[int]
    item_id: NotRequired[str]
    item: NotRequired[ResponseItem]
    part: NotRequired[ResponsePart]
    delta: NotRequired[str]
    text: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]
    logprobs: NotRequired[list[ChatTokenLogprob]]


class ResponseItemList(TypedDict):
    """Items of a conversation, or of the input of a response."""

    object: Literal["list"]
    data: list[ResponseItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(TypedDict):
    """What became of a response."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]
