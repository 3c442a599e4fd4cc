"""The requests of /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, FailFast, Field, PlainValidator, WithJsonSchema

from rnn_engine.chat_template import ChatTemplate, Conversation, Role, WorldTemplate
from rnn_engine.chat_template.answer import ReasoningFormat
from rnn_engine.errors import InvalidRequestError
from server.limits import Limits
from server.schemas.base import STRING, RefusedError, RequestBody, only
from server.schemas.generation import ProgressBody, Stop
from server.schemas.messages import Message, check_messages, parse_role
from server.schemas.tools import ToolFields

_TEMPLATE = WorldTemplate()
_TEXT_ONLY = "the model reads and writes text only"


def _parse_names(value: object) -> dict[Role, str]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise RefusedError(value, 'an object of roles and names, as {"user": "Bob"}')
    return {parse_role(role): name for role, name in value.items()}


Names: TypeAlias = Annotated[
    dict[Role, str],
    PlainValidator(_parse_names),
    WithJsonSchema({"type": "object", "additionalProperties": STRING}),
]


class TemplateBody(RequestBody):
    record: str = Field(default=_TEMPLATE.record, description="A message: {role} and {content} stand for its parts.")
    prefix: str = Field(
        default=_TEMPLATE.prefix, description="The end of the prompt: {assistant} stands for that role's name."
    )
    sep: str = Field(default=_TEMPLATE.sep, description="What stands between the records.")


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, dict) else value


class ChatRequest(ProgressBody, ToolFields):
    """A conversation to continue."""

    ignored: ClassVar = ProgressBody.ignored | {
        "cache_prompt",
        "n_keep",
        "prediction",
        "request_id",
        "verbosity",
    }
    neutral: ClassVar = {
        **ProgressBody.neutral,
        "add_special_tokens": (False,),
        "best_of": (1,),
        "detokenize": (True,),
        "echo": (False,),
        "include_reasoning": (True,),
        "moderation": (),
        "separate_reasoning": (True,),
        "web_search_options": (),
    }
    aliases: ClassVar = {
        **ProgressBody.aliases,
        **ToolFields.aliases,
        "max_completion_tokens": "max_tokens",
        "thinking_token_budget": "thinking_budget_tokens",
    }
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
    reasoning_format: ReasoningFormat | None = Field(
        default=None,
        description="`auto` and `deepseek` tell thoughts in `<think>...</think>` as `reasoning_content`, `none` leaves "
        "them in `content`. Null: as the server was started.",
    )
    thinking_budget_tokens: int | None = Field(
        default=None,
        ge=0,
        description="After this many tokens of thoughts they are closed and the answer begins, where the prompt begins "
        "them.",
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
    verbose: bool = Field(
        default=False, description="Add `__verbose` to an answer that is not streamed: `prompt` is what the model read."
    )
    modalities: Annotated[list[Any] | None, only(None, ["text"], because=_TEXT_ONLY)] = Field(
        default=None, description="Only text."
    )
    audio: Annotated[None, only(None, because=_TEXT_ONLY)] = Field(default=None, description="Only null.")

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        check_messages(self.messages)
        self.check_tools()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs", self.top_logprobs, "null or 0 unless logprobs is true")
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

    def stops(self, of_template: Sequence[str]) -> Sequence[str]:
        """Return the texts before which the answer ends, where the chat template ends a turn with `of_template`."""
        says_end = "stop" in self.model_fields_set or self.answer_grammar is not None
        return self.stop if says_end else of_template

    @property
    def answer_schema(self) -> Mapping[str, object] | bool | None:
        """The JSON schema that an answer without calls of tools follows, where there is one.

        Raises InvalidRequestError for a grammar of another kind, which can't be told from calls.
        """
        grammar = self.answer_grammar
        if grammar is None:
            return None
        if grammar.kind == "json_object":
            return {"type": "object"}
        if grammar.kind != "json_schema":
            raise InvalidRequestError(grammar.field, grammar.text, "null or a JSON schema unless tool_choice is none")
        try:
            schema: Mapping[str, object] | bool = json.loads(grammar.text)
        except (ValueError, RecursionError) as error:
            raise grammar.refused(f"it is no JSON: {error}") from None
        return schema

    @property
    def conversation(self) -> Conversation:
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return Conversation(
            [message.for_template for message in self.messages],
            self.offered if self.choice.mode != "none" else (),
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
        return self.messages[-1].role is Role.ASSISTANT and not self.messages[-1].calls

    def template_of(self, of_model: ChatTemplate) -> ChatTemplate:
        """Return the template of the conversation: the model's, unless the request brings texts or names of its own."""
        if self.template is None and not self.names:
            return of_model
        base = of_model if isinstance(of_model, WorldTemplate) else _TEMPLATE
        return replace(base, names=self.names, **({} if self.template is None else self.template.model_dump()))
