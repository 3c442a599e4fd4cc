"""The schemas of the bodies of OpenAI's /v1/responses: requests, answers and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypeAlias

from pydantic import AfterValidator, FailFast, Field
from pydantic_core import to_json
from typing_extensions import TypedDict

from rnn_engine.chat_template import Role
from rnn_engine.errors import InvalidRequestError
from rnn_engine.grammar import Grammar, json_grammar
from rnn_engine_server.apis.common.generation import ProgressBody
from rnn_engine_server.apis.common.messages import MOST_TOOLS, Choice, FunctionBody, FunctionType, Message, client_tools
from rnn_engine_server.apis.common.states import SavedState
from rnn_engine_server.apis.openai.response_items import METADATA_BOUNDS, ConversationRef, Items, Metadata, messages_of
from rnn_engine_server.apis.openai.schemas import ChatTokenLogprob, TranslatedChat
from rnn_engine_server.core.schema import Only, PromptProgressBody, RefusedError, RequestBody, Timings
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.store.turns import Item

_LOGPROBS = "message.output_text.logprobs"
_FORMATS = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "name": ..., "schema": ...}'


class ResponseTool(FunctionBody, FunctionType):
    """A function that the model may ask its client to call."""


def _grammar_of(value: dict[str, Any]) -> Grammar | None:
    """Return the grammar in a request's field `text.format`, or None for plain text. Raises RefusedError."""
    match value:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Grammar("json_object", field="text.format")
        case {"type": "json_schema", "schema": dict(schema), **rest}:
            return json_grammar(schema, "text.format.schema", strict=rest.get("strict") is not False)
    raise RefusedError(value, _FORMATS)


def _check_format(value: dict[str, Any]) -> dict[str, Any]:
    _grammar_of(value)
    return value


TextFormat: TypeAlias = Annotated[dict[str, Any], AfterValidator(_check_format)]


class TextBody(RequestBody):
    """The setting for the form of an answer's text."""

    ignored: ClassVar = frozenset({"verbosity"})

    format: TextFormat = Field(default={"type": "text"}, description=f"The form of the answer: `{_FORMATS}`.")

    @property
    def grammar(self) -> Grammar | None:
        return _grammar_of(self.format)


class ReasoningBody(RequestBody):
    """The setting for how much the model thinks. Thoughts are returned whole, so a summary makes no difference."""

    ignored: ClassVar = frozenset({"generate_summary", "summary"})

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="How much to think before the answer, if the chat template supports it."
    )


class ResponsesRequest(ProgressBody):
    """A request to continue a conversation. It has OpenAI's own fields and those of this server."""

    ignored: ClassVar = frozenset({"max_tool_calls", "truncation"})
    neutral: ClassVar = {
        "context_management": (),
        "image": (),
        "moderation": (),
        "n": Only((1,), because="a response is one answer"),
        "prompt": (),
    }
    aliases: ClassVar = {"max_output_tokens": "max_tokens"}

    input: Items = Field(
        default=[],
        description="What is new in the conversation: a text of the user, or a list of items: messages, "
        "`function_call`, `function_call_output`, `reasoning`, and `item_reference` to an item of a kept response. "
        "Calls and outputs of other tools become those of functions, and items of other types are left out, as are "
        "references to what is not kept. It may be absent if there is a conversation already.",
    )
    instructions: str | None = Field(
        default=None,
        description="Instructions for the model, only for this answer: those of `previous_response_id` are not taken "
        "over.",
    )
    previous_response_id: str | None = Field(
        default=None, description="The id of a kept response, whose conversation this one continues."
    )
    conversation: ConversationRef | None = Field(
        default=None, description="The id of a kept conversation to continue: `input` and the answer are added to it."
    )
    store: bool = Field(
        default=True,
        description="Keep the response for the API key that asked, so that it can be continued and read by its id, as "
        "long as the limits allow.",
    )
    metadata: Metadata = Field(default={}, description=f"Returned in the response unchanged. {METADATA_BOUNDS}")
    tools: Annotated[list[ResponseTool], FailFast(), client_tools("function")] = Field(
        default=[], max_length=MOST_TOOLS, description="The tools that the model may call."
    )
    tool_choice: Choice | None = Field(
        default=None,
        description='Whether the model calls a tool: none, auto, required, `{"type": "function", "name": ...}` or '
        "`allowed_tools`. Null: auto if there are tools.",
    )
    parallel_tool_calls: bool = Field(default=True, description="Whether one answer may have several calls.")
    text: TextBody = Field(default=TextBody(), description="The form of the answer's text.")
    reasoning: ReasoningBody = Field(default=ReasoningBody(), description="How the model thinks.")
    include: list[str] = Field(
        default=[], description=f"`{_LOGPROBS}` adds the log-probability of every token; other words have no effect."
    )
    top_logprobs: int | None = Field(
        default=None, ge=0, description=f"Add this many of the likeliest tokens, too. Only with `{_LOGPROBS}`."
    )
    background: bool = Field(
        default=False,
        description="Answer at once with a response that is `queued`, and run it afterwards. It is fetched by its id, "
        "and with `stream` its events can be read from any place on.",
    )
    max_tokens: int = Field(default=4096, ge=0, description="The most tokens to generate. 0 runs only the prompt.")

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.text.grammar is not None and self.answer_grammar is not None:
            allowed = "text, since another field already sets the form of the answer"
            raise InvalidRequestError("text.format", self.text.format["type"], allowed)
        if self.conversation is not None and self.previous_response_id is not None:
            raise InvalidRequestError("conversation", self.conversation, "null, since previous_response_id is given")
        if self.background and not self.store:
            raise InvalidRequestError("store", False, "true, since a response in the background is fetched later")
        if self.top_logprobs and not self.wants_logprobs:
            raise InvalidRequestError("top_logprobs", self.top_logprobs, f"null or 0 unless include has {_LOGPROBS}")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_answer_tokens", "max_output_tokens", self.max_tokens)  # a stream ends with the whole
        # The response repeats the following fields of the request, and they are kept with it.
        limits.check("max_text_bytes", "instructions", len((self.instructions or "").encode()))
        limits.check("max_text_bytes", "tools", sum(len(tool.model_dump_json().encode()) for tool in self.tools))
        limits.check("max_grammar_bytes", "text.format", len(to_json(self.text.format)))

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in self.include

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.wants_logprobs else None

    def chat(self, conversation: Sequence[Item]) -> TranslatedChat:
        """Return the chat request that continues `conversation`, whose last items are those of this request's `input`.

        Raises InvalidRequestError for fields that contradict each other.
        """
        fields: dict[str, Any] = {} if self.text.grammar is None else {"json_schema": self.text.grammar}
        system = (
            [] if self.instructions is None else [Message.model_construct(role=Role.SYSTEM, content=self.instructions)]
        )
        return TranslatedChat.of(
            self,
            messages=[*system, *messages_of(conversation)],
            tools=[tool.as_function(tool.parameters) for tool in self.tools],
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort,
            logprobs=self.wants_logprobs,
            top_logprobs=self.top_logprobs if self.wants_logprobs else None,
            return_progress=self.return_progress,
            **fields,
        )


ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class ResponsePart(TypedDict):
    """One part of a message or of the model's thoughts.

    `logprobs` has the tokens of an answer's text, if `include` asks for them.
    """

    type: Literal["input_text", "output_text", "reasoning_text"]
    text: str
    annotations: NotRequired[list[Any]]
    logprobs: NotRequired[list[ChatTokenLogprob]]


class ResponseItem(TypedDict):
    """One item of a conversation: a message, a call, a call's result, or the model's thoughts.

    A `message` has `role` and `content`. A `function_call`, which the client is asked to make, has `call_id`, `name`
    and `arguments` as JSON; its result has `call_id` and `output`. A `reasoning` item has the model's thoughts as
    `content`. An item that was cut is `incomplete`.
    """

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
    """The token counts of a response.

    `input_tokens` counts the conversation before, too; `cached_tokens` of these were not run.
    """

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


def response_usage(prompt: int, cached: int, drawn: int, thoughts: int) -> ResponseUsage:
    """Return token counts in the form of responses; `thoughts` of the `drawn` tokens are those of reasoning."""
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": drawn,
        "output_tokens_details": {"reasoning_tokens": thoughts},
        "total_tokens": prompt + drawn,
    }


class ResponseFailure(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class ConversationId(TypedDict):
    """The id of the conversation to which the server adds the items of a response."""

    id: str


class Response(SavedState):
    """A response object, which is the answer to a request for a response.

    Its status is `incomplete` if the answer was cut. Fields of the request have the values that the server understood.
    """

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
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


class ResponseEvent(TypedDict):
    """One event of a response's stream. The name of the server-sent event is the field `type`.

    First come `response.created` and `response.in_progress`; with `return_progress` there are more of the latter. For
    each item follow `response.output_item.added`, `response.content_part.added`, `response.output_text.delta` and
    `.done`, `response.content_part.done` and `response.output_item.done`. Thoughts have `response.reasoning_text` in
    place of `response.output_text`. Calls have `response.function_call_arguments` in its place, and no content part.
    The last event is `response.completed`, `response.incomplete` or `response.failed`. In the background,
    `response.queued` comes after `response.created`, and the stream of a cancelled response ends without a last event.
    """

    type: str
    sequence_number: int
    response: NotRequired[Response]
    prompt_progress: NotRequired[PromptProgressBody]
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
