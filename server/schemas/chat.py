"""The bodies of /v1/chat/completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypeAlias

from pydantic import BeforeValidator, FailFast, Field, PlainValidator, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.chat_template import (
    ROLE_WORDS,
    ChatMessage,
    ChatTemplate,
    Conversation,
    Role,
    WorldTemplate,
    find_role,
)
from rnn_engine.errors import InvalidRequestError
from server.limits import Limits
from server.schemas.base import RefusedError, RequestBody, only
from server.schemas.error import ErrorDetail
from server.schemas.generation import GenerationBody, Stop
from server.schemas.state_entry import StateEntry
from server.schemas.usage import Usage

_TEMPLATE = WorldTemplate()
_NO_TOOLS = "this server does not call tools"
_TEXT_ONLY = "the model reads and writes text only"


def _parse_content(value: object) -> str:
    """Return a string as it is, or text parts joined; null is an empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RefusedError(value, "a string or a list of text parts")
    return "".join(_parse_part(part) for part in value)


def _parse_part(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise RefusedError(part, 'text parts as {"type": "text", "text": "..."}')


def _parse_names(value: object) -> dict[Role, str]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise RefusedError(value, 'an object of roles and names, as {"user": "Bob"}')
    return {_parse_role(role): name for role, name in value.items()}


def _parse_role(value: object) -> Role:
    role = find_role(value) if isinstance(value, str) else None
    if role is None:
        raise RefusedError(value, f"one of {', '.join(ROLE_WORDS)}, in any case of letters")
    return role


def _parse_cache(value: object) -> bool:
    if isinstance(value, bool):
        return value
    match value:
        case {"type": "ephemeral"}:
            return True
    raise RefusedError(value, 'true, false or {"type": "ephemeral"}')


_TEXT_PART = {"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}
_EPHEMERAL = {"type": "object", "properties": {"type": {"const": "ephemeral"}}}
Content: TypeAlias = Annotated[
    str,
    PlainValidator(_parse_content),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]}),
]
CacheFlag: TypeAlias = Annotated[
    bool,
    PlainValidator(_parse_cache),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, _EPHEMERAL]}),
]
RoleWord: TypeAlias = Annotated[Role, PlainValidator(_parse_role), WithJsonSchema({"type": "string"})]
Names: TypeAlias = Annotated[
    dict[Role, str],
    PlainValidator(_parse_names),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


class Message(RequestBody):
    """One message. The fields of this server's own answers are accepted, so that a client may send them back."""

    ignored: ClassVar = frozenset({"annotations", "audio", "name", "reasoning_content", "refusal", "tool_call_id"})
    aliases: ClassVar = {"cache_control": "cache"}

    role: RoleWord = Field(
        description="system (or developer), user, assistant, tool (or observation), in any case of letters."
    )
    content: Content = Field(default="", description="A text, or a list of text parts, which are joined.")
    cache: CacheFlag = Field(
        default=False,
        description='Keep the state after this message before any other: true, or {"type": "ephemeral"}.',
    )
    tool_calls: Annotated[list[Any] | None, only(None, [], because=_NO_TOOLS)] = Field(
        default=None, description="Only null."
    )
    function_call: Annotated[None, only(None, because=_NO_TOOLS)] = Field(default=None, description="Only null.")


class TemplateBody(RequestBody):
    record: str = Field(default=_TEMPLATE.record, description="A message: {role} and {content} stand for its parts.")
    prefix: str = Field(
        default=_TEMPLATE.prefix, description="The end of the prompt: {assistant} stands for that role's name."
    )
    sep: str = Field(default=_TEMPLATE.sep, description="What stands between the records.")


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, dict) else value


class ChatRequest(GenerationBody):
    """A conversation to continue."""

    ignored: ClassVar = GenerationBody.ignored | {"parallel_tool_calls", "prediction", "verbosity"}
    aliases: ClassVar = {**GenerationBody.aliases, "max_completion_tokens": "max_tokens"}
    keeps_null: ClassVar = frozenset({"stop"})

    messages: Annotated[list[Message], FailFast(), BeforeValidator(_one_or_more)] = Field(
        min_length=1, description="The conversation so far: one message or a list."
    )
    names: Names = Field(default={}, description="Role -> the name that the model reads for it.")
    template: TemplateBody | None = Field(
        default=None, description="The texts around the messages, in place of the model's chat template."
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default={},
        description="Variables of the chat template, such as `enable_thinking`, which RWKV World's has, too: it begins "
        "the answer with `<think`, as RWKV-7 G1 was trained.",
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="How much to think before the answer, where the chat template can say it."
    )
    add_generation_prompt: bool | None = Field(
        default=None,
        description="Whether the prompt ends where an answer begins. Null: yes, unless the last message is the "
        "assistant's.",
    )
    continue_final_message: bool | None = Field(
        default=None,
        description="Go on with the last message, which is the assistant's, in place of answering it. Null: where it "
        "is the assistant's and `add_generation_prompt` is not true.",
    )
    stop: Stop = Field(
        default=(),
        description="Texts before which the answer ends; null for none. Absent: what the chat template says, a blank "
        "line for RWKV World; none with a grammar.",
    )
    logprobs: bool = Field(default=False, description="Add the log-probability of every token.")
    top_logprobs: int | None = Field(
        default=None, ge=0, description="Add this many of the likeliest tokens, too. Only with `logprobs`."
    )
    return_token_ids: bool = Field(default=False, description="Add `prompt_token_ids` and `token_ids` to the choices.")
    tools: Annotated[list[Any] | None, only(None, [], because=_NO_TOOLS)] = Field(
        default=None, description="Only null."
    )
    tool_choice: Annotated[str | None, only(None, "none", "auto", because=_NO_TOOLS)] = Field(
        default=None, description="Only null, none or auto."
    )
    functions: Annotated[list[Any] | None, only(None, [], because=_NO_TOOLS)] = Field(
        default=None, description="Only null."
    )
    function_call: Annotated[str | None, only(None, "none", "auto", because=_NO_TOOLS)] = Field(
        default=None, description="Only null, none or auto."
    )
    modalities: Annotated[list[Any] | None, only(None, ["text"], because=_TEXT_ONLY)] = Field(
        default=None, description="Only text."
    )
    audio: Annotated[None, only(None, because=_TEXT_ONLY)] = Field(default=None, description="Only null.")

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs", self.top_logprobs, "null unless logprobs is true")
        if self.continue_final_message and (self.add_generation_prompt or not self._ends_with_assistant):
            allowed = "false or null unless the last message is the assistant's and add_generation_prompt is not true"
            raise InvalidRequestError("continue_final_message", True, allowed)

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_messages", "messages", len(self.messages))
        limits.check("max_text_bytes", "messages", self.conversation.characters)

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def conversation(self) -> Conversation:
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return Conversation(
            [ChatMessage(message.role, message.content) for message in self.messages],
            continues=self.continues,
            answers=self.add_generation_prompt is not False,
            variables={**effort, **self.chat_template_kwargs},
        )

    @property
    def continues(self) -> bool:
        """Whether the last message is to be gone on with."""
        if self.continue_final_message is not None:
            return self.continue_final_message
        return self._ends_with_assistant and not self.add_generation_prompt

    @property
    def _ends_with_assistant(self) -> bool:
        return self.messages[-1].role is Role.ASSISTANT

    def template_of(self, of_model: ChatTemplate) -> ChatTemplate:
        """Return the template of the conversation: the model's, unless the request brings texts or names of its own."""
        if self.template is None and not self.names:
            return of_model
        base = of_model if isinstance(of_model, WorldTemplate) else _TEMPLATE
        return replace(base, names=self.names, **({} if self.template is None else self.template.model_dump()))


class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChatTokenLogprob]
    refusal: None


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    seed: int
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """The answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    seed: NotRequired[int]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class ChatCompletionChunk(TypedDict):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]
