"""The requests of OpenAI's /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, FailFast, Field
from pydantic_core import to_json

from rnn_engine.chat_template import Role
from rnn_engine.errors import InvalidRequestError
from rnn_engine.grammar import Grammar, json_grammar
from server.limits import Limits
from server.schemas.base import RefusedError, RequestBody, only
from server.schemas.generation import ProgressBody
from server.schemas.messages import Message
from server.schemas.responses.conversations import METADATA_BOUNDS, ConversationRef, Metadata
from server.schemas.responses.items import Item, Items, messages_of
from server.schemas.tools import MOST_TOOLS, Choice, FunctionBody, Parameters, ToolBody, ToolName, check_tool_type
from server.schemas.translated import TranslatedChat

_LOGPROBS = "message.output_text.logprobs"
_FORMATS = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "name": ..., "schema": ...}'


class ResponseTool(RequestBody):
    """A function that the model may ask its client to call."""

    type: Literal["function"] = Field(description="Only `function`.")
    name: ToolName
    description: str = Field(default="", description="What the tool is for.")
    parameters: Parameters = Field(
        default={"type": "object", "properties": {}},
        description="The JSON schema of the arguments, which every call follows.",
    )
    strict: bool | None = Field(
        default=None, description="Whether a keyword of the schema that no call can be held to is refused, not ignored."
    )

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        return check_tool_type(fields, "function")

    @property
    def body(self) -> ToolBody:
        """The tool as chats have it."""
        function = FunctionBody.model_construct(
            name=self.name, description=self.description, parameters=self.parameters, strict=self.strict
        )
        return ToolBody.model_construct(type="function", function=function)


def _grammar_of(value: dict[str, Any]) -> Grammar | None:
    """Return the grammar that `text.format` stands for. Raises RefusedError."""
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
    """What the text of an answer is to be like."""

    ignored: ClassVar = frozenset({"verbosity"})

    format: TextFormat = Field(default={"type": "text"}, description=f"What the answer is: `{_FORMATS}`.")

    @property
    def grammar(self) -> Grammar | None:
        return _grammar_of(self.format)


class ReasoningBody(RequestBody):
    """How the model thinks. Its thoughts are told as they are, so a summary makes no difference."""

    ignored: ClassVar = frozenset({"generate_summary", "summary"})

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="How much to think before the answer, where the chat template can say it."
    )


class ResponsesRequest(ProgressBody):
    """A conversation to continue. Beside OpenAI's own fields it has those of this server."""

    ignored: ClassVar = (ProgressBody.ignored - {"store", "metadata"}) | {"max_tool_calls", "truncation"}
    neutral: ClassVar = {**ProgressBody.neutral, "context_management": (), "moderation": (), "prompt": ()}
    aliases: ClassVar = {**ProgressBody.aliases, "max_output_tokens": "max_tokens"}

    input: Items = Field(
        default=[],
        description="What is new in the conversation: a text of the user, or a list of items: messages, "
        "`function_call`, `function_call_output`, `reasoning`, and `item_reference` to an item of a kept response. "
        "It may be absent where there is a conversation already.",
    )
    instructions: str | None = Field(
        default=None,
        description="What the model is to be or to know, for this answer alone: those of `previous_response_id` are "
        "not taken over.",
    )
    previous_response_id: str | None = Field(
        default=None, description="The id of a kept response, whose conversation goes on."
    )
    conversation: ConversationRef | None = Field(
        default=None,
        description="The id of a kept conversation, which goes on: `input` and the answer are added to it.",
    )
    store: bool = Field(
        default=True,
        description="Whether the response can be gone on with and read by its id. It is kept in memory, for the API "
        "key that asked, and as long as the limits say.",
    )
    metadata: Metadata = Field(default={}, description=f"Told in the response as it is. {METADATA_BOUNDS}")
    tools: Annotated[list[ResponseTool], FailFast()] = Field(
        default=[], max_length=MOST_TOOLS, description="The tools that the model may call."
    )
    tool_choice: Choice | None = Field(
        default=None,
        description='Whether it calls one: none, auto, required, `{"type": "function", "name": ...}` or '
        "`allowed_tools`. Null: auto where there are tools.",
    )
    parallel_tool_calls: bool = Field(default=True, description="Whether one answer may have several calls.")
    text: TextBody = Field(default=TextBody(), description="What the text of the answer is to be like.")
    reasoning: ReasoningBody = Field(default=ReasoningBody(), description="How the model thinks.")
    include: list[str] = Field(
        default=[],
        description=f"`{_LOGPROBS}` adds the log-probability of every token; other words have no effect.",
    )
    top_logprobs: int | None = Field(
        default=None, ge=0, description=f"Add this many of the likeliest tokens, too. Only with `{_LOGPROBS}`."
    )
    background: Annotated[Literal[False], only(False, because="answers come while their client waits")] = Field(
        default=False, description="Only false."
    )
    max_tokens: int = Field(default=4096, ge=0, description="The most tokens to generate. 0 runs the prompt alone.")
    n: Annotated[int, only(1, because="a response is one answer")] = Field(default=1, description="Only 1.")

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.text.grammar is not None and self.answer_grammar is not None:
            allowed = "text where another field says what the answer is, too"
            raise InvalidRequestError("text.format", self.text.format["type"], allowed)
        if self.conversation is not None and self.previous_response_id is not None:
            raise InvalidRequestError("conversation", self.conversation, "null where there is a previous_response_id")
        if self.top_logprobs and not self.wants_logprobs:
            raise InvalidRequestError("top_logprobs", self.top_logprobs, f"null or 0 unless include has {_LOGPROBS}")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_answer_tokens", "max_output_tokens", self.max_tokens)  # a stream tells the whole at its end
        # What the response repeats of the request is kept with it.
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
        """Return what continues `conversation`, in which `input` comes last, as a chat.

        Raises InvalidRequestError for fields that contradict each other.
        """
        fields: dict[str, Any] = {} if self.text.grammar is None else {"json_schema": self.text.grammar}
        system = [] if self.instructions is None else [_system_message(self.instructions)]
        return TranslatedChat.of(
            self,
            messages=[*system, *messages_of(conversation)],
            tools=[tool.body for tool in self.tools],
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort,
            logprobs=self.wants_logprobs,
            top_logprobs=self.top_logprobs if self.wants_logprobs else None,
            return_progress=self.return_progress,
            **fields,
        )


def _system_message(text: str) -> Message:
    return Message.model_construct(role=Role.SYSTEM, content=text)
