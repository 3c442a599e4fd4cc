"""The schemas of the bodies of Anthropic's API: requests, answers, events and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypeAlias

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.chat_template import Role
from rnn_engine.chat_template.tools import to_json
from rnn_engine.errors import InvalidRequestError
from rnn_engine.grammar import Grammar, json_grammar
from rnn_engine.operations.chat_prompt import ToolChoice
from rnn_engine_server.apis.common.generation import GenerationBody
from rnn_engine_server.apis.common.histories import Info, history, leave_out, part_text, tool_text
from rnn_engine_server.apis.common.messages import (
    CalledFunction,
    Message,
    NamedTool,
    Parameters,
    ToolCallBody,
    check_tool_type,
    client_tools,
    earlier_arguments,
)
from rnn_engine_server.apis.common.states import SavedState
from rnn_engine_server.apis.openai.schemas import TranslatedChat
from rnn_engine_server.core.schema import NULL, OBJECT, STRING, Only, Parsed, RefusedError, RequestBody, Schema
from rnn_engine_server.core.settings import Limits

_TEXT_ALONE = "blocks of text, thinking, tool_use and tool_result, since the model reads and writes text only"


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive blocks of one message: texts, thoughts and calls, or else the result of one call."""

    texts: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    calls: tuple[ToolCallBody, ...] = ()
    result: str | None = None
    call_id: str | None = None  # which call has the result
    loaded: tuple[str, ...] = ()  # names of deferred tools that the result refers to


@dataclass(frozen=True, slots=True)
class Content:
    """The parsed content of one message."""

    turns: tuple[Turn, ...] = ()
    cache: bool = False  # whether to keep the state after the message


def _parse_content(value: object, info: Info) -> Content:
    if value is None and info.data.get("role") == "assistant":
        return Content()
    if isinstance(value, str):
        return Content((Turn((value,)),))
    if not isinstance(value, list):
        raise RefusedError(value, "a string or a list of blocks")
    turns: list[Turn] = []
    for block in value:
        if not isinstance(block, dict):
            raise RefusedError(block, 'blocks such as {"type": "text", "text": "..."}')
        if _is(block, "tool_result"):
            turns.append(_parse_result(block, info))
        elif not turns or turns[-1].result is not None:
            turns.append(_add(Turn(), block))
        else:
            turns[-1] = _add(turns[-1], block)
    return Content(tuple(turns), any(block.get("cache_control") is not None for block in value))


def _is(block: Mapping[str, Any], kind: str) -> bool:
    """Return True if a block is of the type `kind`, or of a provider's own tools, such as `mcp_tool_use`."""
    found = block.get("type")
    return isinstance(found, str) and (found == kind or found.endswith(f"_{kind}"))


def _parse_result(block: Mapping[str, Any], info: Info) -> Turn:
    if not isinstance(call_id := block.get("tool_use_id"), str):
        raise RefusedError(block, "a block with all of its required fields")
    if block["type"] == "tool_result" and info.data.get("role", "user") != "user":
        raise RefusedError("tool_result", "such blocks only in messages of the user")
    content = block.get("content")
    parts = content if isinstance(content, list) else []
    loaded = tuple(str(part["tool_name"]) for part in parts if isinstance(part, dict) and "tool_name" in part)
    return Turn(result=tool_text(content, info, "messages.content", "\n"), call_id=call_id, loaded=loaded)


def _add(turn: Turn, block: Mapping[str, Any]) -> Turn:
    if (text := part_text(block)) is not None:
        return replace(turn, texts=(*turn.texts, text))
    match block:
        case {"type": "thinking", "thinking": str(text)}:
            return replace(turn, thoughts=(*turn.thoughts, text))
        case {"type": "redacted_thinking"}:
            return turn
        case {"id": str(call_id), "name": str(name), "input": arguments} if _is(block, "tool_use"):
            function = CalledFunction.model_construct(name=name, arguments=to_json(earlier_arguments(arguments)))
            return replace(turn, calls=(*turn.calls, ToolCallBody.model_construct(id=call_id, function=function)))
        case {"type": "text" | "thinking" | "tool_use"}:
            raise RefusedError(block, "a block with all of its required fields")
        case {"type": str(kind)}:
            raise RefusedError(kind, _TEXT_ALONE)
    raise RefusedError(block, 'blocks such as {"type": "text", "text": "..."}')


def _is_readable(block: Mapping[str, Any]) -> bool:
    kind = block["type"]
    is_own = kind in ("text", "thinking", "redacted_thinking") or _is(block, "tool_use") or _is(block, "tool_result")
    return is_own or part_text(block) is not None


def _leave_out_of(message: dict[str, Any], info: Info) -> dict[str, Any]:
    """Return an earlier message without the blocks that the model can't read."""
    content = leave_out(message.get("content"), info, "messages.content", _is_readable)
    return {**message, "content": content}


_BILLING = "x-anthropic-billing-header:"


def _parse_system(value: object, info: Info) -> Content:
    """Parse the field `system`. Raises RefusedError.

    Claude Code's first block is a header for Anthropic's servers. It differs from call to call, so it is left out:
    otherwise no later call could continue from a kept state of the long instructions after it.
    """
    content = _parse_content(value, info)
    if any(turn.thoughts or turn.calls or turn.result is not None for turn in content.turns):
        raise RefusedError(value, "a string or a list of blocks of text")
    texts = (text for turn in content.turns for text in turn.texts)
    return replace(content, turns=(Turn(tuple(text for text in texts if not text.startswith(_BILLING))),))


_BLOCKS: tuple[Schema, ...] = (STRING, {"type": "array", "items": OBJECT})
Blocks: TypeAlias = Annotated[Content, Parsed(_parse_content, *_BLOCKS)]
SystemBlocks: TypeAlias = Annotated[Content, Parsed(_parse_system, *_BLOCKS, NULL)]


class AnthropicMessage(RequestBody):
    """One message of a conversation in Anthropic's format."""

    role: Literal["user", "assistant", "system"] = Field(description="Who speaks.")
    content: Blocks = Field(
        description="A text, or a list of blocks. Any message may have `text` blocks; the assistant's also `thinking` "
        "and `tool_use`, and the user's also `tool_result`. `document` and `search_result` are read if they are text; "
        "tools that Anthropic runs have their blocks as well. `cache_control` in a block keeps the state after the "
        "message in preference to others. Images and other blocks without a text are left out of earlier messages and "
        "of results, which `X-Left-Out` names, and are refused in what the user says last."
    )

    def model_post_init(self, context: object) -> None:  # noqa: ARG002
        if self.role != "assistant" and any(turn.calls or turn.thoughts for turn in self.content.turns):
            raise RefusedError("tool_use or thinking", "such blocks only in messages of the assistant", below="content")

    @property
    def messages(self) -> Sequence[Message]:
        """The message in the form that chat templates take.

        Results of tools become messages of their own, which come first in a message of the user.
        """
        turns = [turn for turn in self.content.turns if turn != Turn()] or [Turn()]
        if self.role == "user":
            results = [turn for turn in turns if turn.result is not None]
            texts = tuple(text for turn in turns for text in turn.texts)
            turns = [*results, *([Turn(texts)] if texts or not results else [])]
        found = [self._message(turn) for turn in turns]
        return [*found[:-1], found[-1].model_copy(update={"cache": self.content.cache})]

    def _message(self, turn: Turn) -> Message:
        if turn.result is not None:
            return Message.model_construct(role=Role.OBSERVATION, content=turn.result, tool_call_id=turn.call_id)
        return Message.model_construct(
            role=Role[self.role.upper()],
            content="".join(turn.texts),
            reasoning_content="\n".join(turn.thoughts) or None,
            tool_calls=list(turn.calls),
        )


class AnthropicTool(NamedTool):
    """A function that the model may ask its client to call."""

    ignored: ClassVar = frozenset({"allowed_callers", "cache_control", "eager_input_streaming", "input_examples"})

    type: Literal["custom"] | None = Field(default=None, description="Only `custom`.")
    defer_loading: bool = Field(
        default=False, description="Offer the tool only once a result has a `tool_reference` block with its name."
    )
    input_schema: Parameters = Field(description="The JSON schema of the input, which every call follows.")

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        return check_tool_type(fields, None, "custom")


class ToolChoiceBody(RequestBody):
    """The client's choice of tools: if the model must call one, and which."""

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="`auto`: the model decides; `any`: at least one tool; `tool`: the tool that `name` gives; `none`: "
        "no tool."
    )
    name: str | None = Field(default=None, description="The name of the tool if `type` is `tool`.")
    disable_parallel_tool_use: bool = Field(default=False, description="Allow at most one call in an answer.")

    def model_post_init(self, context: object) -> None:  # noqa: ARG002
        if (self.type == "tool") is (self.name is None):
            raise RefusedError(self.name, "the name of a tool if type is tool, else null", below="name")

    @property
    def choice(self) -> ToolChoice:
        match self.type:
            case "auto" | "none":
                return ToolChoice(self.type)
            case "any" | "tool":
                return ToolChoice("required", None if self.name is None else (self.name,))


class ThinkingBody(RequestBody):
    """The setting that makes the model think before it answers, if its chat template has such a setting."""

    type: Literal["enabled", "adaptive", "disabled"] = Field(description="`adaptive` is the same as `enabled`.")
    budget_tokens: int | None = Field(
        default=None, ge=0, description="End the model's reasoning after this many tokens, and begin the answer."
    )
    display: Literal["summarized", "updates", "omitted"] | None = Field(
        default=None, description="`omitted` leaves the text of the reasoning empty; others return it whole."
    )


def _parse_format(value: object) -> Grammar | None:
    match value:
        case None:
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            return json_grammar(schema, "output_config.format.schema")
    raise RefusedError(value, '{"type": "json_schema", "schema": ...} or null')


OutputFormat: TypeAlias = Annotated[Grammar | None, Parsed(_parse_format, OBJECT, NULL)]


class OutputConfig(RequestBody):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="How much to think before the answer, if the chat template supports it."
    )
    format: OutputFormat = Field(
        default=None, description='The form of the answer: `{"type": "json_schema", "schema": ...}`.'
    )


class AnthropicConversation(GenerationBody):
    """A conversation in Anthropic's format: the fields that `/v1/messages` and the count of tokens share."""

    ignored: ClassVar = frozenset(
        {"cache_control", "container", "diagnostics", "inference_geo", "speed", "user_profile_id", "workspace_id"}
    )
    neutral: ClassVar = {"mcp_servers": ([],), "n": Only((1,), because="a message is one answer"), "thread": ()}
    aliases: ClassVar = {"stop_sequences": "stop"}

    messages: Annotated[list[AnthropicMessage], FailFast(), history(_leave_out_of)] = Field(
        min_length=1,
        description="The conversation so far. If the last message is the assistant's, the answer continues it.",
    )
    system: SystemBlocks | None = Field(
        default=None, description="Instructions for the model: a text, or a list of blocks of text."
    )
    tools: Annotated[list[AnthropicTool], FailFast(), client_tools(None, "custom")] = Field(
        default=[], description="The tools that the model may call."
    )
    tool_choice: ToolChoiceBody | None = Field(default=None, description="Null: `auto`.")
    thinking: ThinkingBody | None = Field(default=None, description="Null: the chat template's default.")
    output_config: OutputConfig = Field(
        default=OutputConfig(), description="The form of the answer, and how much to think before it."
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.output_config.format is not None and self.answer_grammar is not None:
            allowed = "null, since another field already sets the form of the answer"
            raise InvalidRequestError("output_config.format", self.output_config.format.text, allowed)
        _ = self.chat  # raises if fields contradict each other

    def check(self, limits: Limits) -> None:
        self.chat.check(limits)

    @property
    def omits_thoughts(self) -> bool:
        return self.thinking is not None and self.thinking.display == "omitted"

    @cached_property
    def chat(self) -> TranslatedChat:
        """The conversation as a request for OpenAI's chat completions."""
        fields: dict[str, Any] = {}
        if self.output_config.format is not None:
            fields["json_schema"] = self.output_config.format
        if self.tool_choice is not None:
            fields["tool_choice"] = self.tool_choice.choice
            fields["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        if self.thinking is not None:
            fields["enable_thinking"] = self.thinking.type != "disabled"
            fields["thinking_budget_tokens"] = self.thinking.budget_tokens
        if self.output_config.effort is not None:
            fields["reasoning_effort"] = "xhigh" if self.output_config.effort == "max" else self.output_config.effort
        turns = [turn for message in self.messages for turn in message.content.turns]
        loaded = {name for turn in turns for name in turn.loaded}
        offered = [tool for tool in self.tools if not tool.defer_loading or tool.name in loaded]
        tools = [tool.as_function(tool.input_schema) for tool in offered]
        return TranslatedChat.of(self, messages=[*self._system, *self._turns], tools=tools, **fields)

    @property
    def _system(self) -> list[Message]:
        if self.system is None:
            return []
        text = "\n".join(text for turn in self.system.turns for text in turn.texts)
        return [Message.model_construct(role=Role.SYSTEM, content=text, cache=self.system.cache)]

    @property
    def _turns(self) -> list[Message]:
        return [each for message in self.messages for each in message.messages]


class MessagesRequest(AnthropicConversation):
    """A request to continue a conversation. It has Anthropic's own fields and those of this server."""

    max_tokens: int = Field(ge=0, description="The most tokens to generate. 0 runs only the prompt.")


class CountTokensRequest(AnthropicConversation):
    """A request to count the tokens of a conversation, without an answer."""


StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class AnthropicBlock(TypedDict):
    """A content block, which is a part of an answer.

    A `text` block has `text`. A `thinking` block has the model's thoughts as `thinking`, and an empty `signature`. A
    `tool_use` block is a call that the client is asked to make. It has `id`, `name` and `input`. A call that was cut is
    left out; in a stream, its `partial_json` is no whole JSON.
    """

    type: Literal["text", "thinking", "tool_use"]
    text: NotRequired[str]
    thinking: NotRequired[str]
    signature: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    input: NotRequired[Mapping[str, Any]]


class AnthropicUsage(TypedDict):
    """The token counts of a request and its answer.

    `cache_read_input_tokens` of the prompt came from the cache and were not run; `input_tokens` counts the others.
    """

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: Literal[0]
    output_tokens: int


class AnthropicAnswer(SavedState):
    """The answer to a conversation: the assistant's next message.

    `stop_sequence` is the one of `stop_sequences` that ended the answer.
    """

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnthropicUsage


class AnthropicDelta(TypedDict):
    """The change that a stream's event makes to the answer.

    It is more of a block (`text_delta`, `thinking_delta` or `input_json_delta`), or the reason why the answer ended.
    """

    type: NotRequired[Literal["text_delta", "thinking_delta", "input_json_delta"]]
    text: NotRequired[str]
    thinking: NotRequired[str]
    partial_json: NotRequired[str]
    stop_reason: NotRequired[StopReason]
    stop_sequence: NotRequired[str | None]


class AnthropicErrorDetail(TypedDict):
    """The type and the message of an error.

    A client that sent `thread` learns from `details` that it has to send whole conversations.
    """

    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class AnthropicEvent(SavedState):
    """One event of an answer's stream. The name of the server-sent event is the field `type`.

    `index` is the number of the content block.
    """

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


class AnthropicError(TypedDict):
    """The body of every error answer of Anthropic's routes."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class TokenCount(TypedDict):
    """The answer with the number of tokens of a conversation."""

    input_tokens: int
