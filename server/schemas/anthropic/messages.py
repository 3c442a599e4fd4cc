"""The requests of Anthropic's /v1/messages."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import FailFast, Field, PlainValidator, WithJsonSchema

from rnn_engine.chat_template import Role
from rnn_engine.errors import InvalidRequestError
from rnn_engine.grammar import Grammar, json_grammar
from rnn_engine.operations.tool_calls import ToolChoice
from server.limits import Limits
from server.schemas.anthropic.content import AnthropicMessage, SystemBlocks
from server.schemas.base import RefusedError, RequestBody, only
from server.schemas.generation import GenerationBody
from server.schemas.messages import Message
from server.schemas.tools import FunctionBody, Parameters, ToolBody, ToolName, check_tool_type
from server.schemas.translated import TranslatedChat


class AnthropicTool(RequestBody):
    """A function that the model may ask its client to call."""

    ignored: ClassVar = frozenset(
        {"allowed_callers", "cache_control", "defer_loading", "eager_input_streaming", "input_examples"}
    )

    type: Literal["custom"] | None = Field(default=None, description="Only `custom`.")
    name: ToolName
    description: str = Field(default="", description="What the tool is for.")
    input_schema: Parameters = Field(description="The JSON schema of the input, which every call follows.")
    strict: bool | None = Field(
        default=None, description="Whether a keyword of the schema that no call can be held to is refused, not ignored."
    )

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        return check_tool_type(fields, None, "custom")

    @property
    def body(self) -> ToolBody:
        """The tool in OpenAI's words."""
        function = FunctionBody.model_construct(
            name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict
        )
        return ToolBody.model_construct(type="function", function=function)


class ToolChoiceBody(RequestBody):
    """Whether the model calls a tool."""

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="`auto`: as it wants; `any`: at least one; `tool`: the one that is named; `none`: no tool."
    )
    name: str | None = Field(default=None, description="The tool, where `type` is `tool`.")
    disable_parallel_tool_use: bool = Field(default=False, description="Whether an answer has one call at most.")

    def model_post_init(self, context: object) -> None:  # noqa: ARG002
        if (self.type == "tool") is (self.name is None):
            raise RefusedError(self.name, "the name of a tool where type is tool, else null", below="name")

    @property
    def choice(self) -> ToolChoice:
        match self.type:
            case "auto" | "none":
                return ToolChoice(self.type)
            case "any" | "tool":
                return ToolChoice("required", None if self.name is None else (self.name,))


class ThinkingBody(RequestBody):
    """Whether the model thinks before it answers, where the chat template can say it."""

    type: Literal["enabled", "adaptive", "disabled"] = Field(description="`adaptive` is the same as `enabled`.")
    budget_tokens: int | None = Field(
        default=None, ge=0, description="After this many tokens of thoughts they are closed and the answer begins."
    )
    display: Annotated[str | None, only(None, "summarized", because="thoughts are told as they are")] = Field(
        default=None, description="Only `summarized`, which tells them all."
    )


def _parse_format(value: object) -> Grammar | None:
    match value:
        case None:
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            return json_grammar(schema, "output_config.format.schema")
    raise RefusedError(value, '{"type": "json_schema", "schema": ...} or null')


OutputFormat: TypeAlias = Annotated[
    Grammar | None,
    PlainValidator(_parse_format),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "null"}]}),
]


class OutputConfig(RequestBody):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="How much to think before the answer, where the chat template can say it."
    )
    format: OutputFormat = Field(
        default=None, description='What the answer is: `{"type": "json_schema", "schema": ...}`.'
    )


class AnthropicConversation(GenerationBody):
    """A conversation in Anthropic's words."""

    ignored: ClassVar = GenerationBody.ignored | {
        "cache_control",
        "container",
        "diagnostics",
        "inference_geo",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
    neutral: ClassVar = {**GenerationBody.neutral, "thread": ()}
    aliases: ClassVar = {**GenerationBody.aliases, "stop_sequences": "stop"}

    messages: Annotated[list[AnthropicMessage], FailFast()] = Field(
        min_length=1,
        description="The conversation so far. Where the last message is the assistant's, the answer goes on with it.",
    )
    system: SystemBlocks | None = Field(
        default=None, description="What the model is to be or to know: a text, or a list of blocks of text."
    )
    tools: Annotated[list[AnthropicTool], FailFast()] = Field(
        default=[], description="The tools that the model may call."
    )
    tool_choice: ToolChoiceBody | None = Field(default=None, description="Null: `auto`.")
    thinking: ThinkingBody | None = Field(default=None, description="Null: as the chat template has it.")
    output_config: OutputConfig = Field(default=OutputConfig(), description="What the answer is to be like.")
    n: Annotated[int, only(1, because="a message is one answer")] = Field(default=1, description="Only 1.")

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.output_config.format is not None and self.answer_grammar is not None:
            allowed = "null, since another field says what the answer is, too"
            raise InvalidRequestError("output_config.format", self.output_config.format.text, allowed)
        _ = self.chat  # checks what contradicts itself

    def check(self, limits: Limits) -> None:
        self.chat.check(limits)

    @property
    def alternatives(self) -> int | None:
        return None

    @cached_property
    def chat(self) -> TranslatedChat:
        """The same conversation in OpenAI's words."""
        fields: dict[str, Any] = {}
        if self.output_config.format is not None:
            fields["json_schema"] = self.output_config.format
        if self.tool_choice is not None:
            fields["tool_choice"] = self.tool_choice.choice
            fields["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        if self.thinking is not None:
            fields["chat_template_kwargs"] = {"enable_thinking": self.thinking.type != "disabled"}
            fields["thinking_budget_tokens"] = self.thinking.budget_tokens
        if self.output_config.effort is not None:
            fields["reasoning_effort"] = "xhigh" if self.output_config.effort == "max" else self.output_config.effort
        return TranslatedChat.of(
            self, messages=[*self._system, *self._turns], tools=[tool.body for tool in self.tools], **fields
        )

    @property
    def _system(self) -> list[Message]:
        if self.system is None:
            return []
        text, cache = "".join(self.system.texts), self.system.cache
        return [Message.model_construct(role=Role.SYSTEM, content=text, cache=cache)]

    @property
    def _turns(self) -> list[Message]:
        return [each for message in self.messages for each in message.messages]


class MessagesRequest(AnthropicConversation):
    """A conversation to continue. Beside Anthropic's own fields it has those of this server."""

    max_tokens: int = Field(ge=0, description="The most tokens to generate. 0 runs the prompt alone.")


class CountTokensRequest(AnthropicConversation):
    """A conversation whose tokens are counted."""
