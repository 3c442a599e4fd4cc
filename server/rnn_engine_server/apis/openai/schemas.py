"""The schemas of the bodies of /v1/completions and /v1/chat/completions; chats of other APIs in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NotRequired, Self, TypeAlias

from pydantic import BeforeValidator, FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.chat_template import ChatTemplate, Conversation, Role, WorldTemplate
from rnn_engine.chat_template.answer import ReasoningFormat
from rnn_engine.errors import InvalidRequestError
from rnn_engine.grammar import Tag
from rnn_engine_server.apis.common.generation import (
    GenerationBody,
    LogprobCount,
    PromptBody,
    PromptLogprob,
    Prompts,
    Stop,
    check_prompts,
)
from rnn_engine_server.apis.common.histories import history
from rnn_engine_server.apis.common.messages import Message, ToolFields, check_messages, leave_out_of_message, parse_role
from rnn_engine_server.apis.common.states import SavedState
from rnn_engine_server.core.schema import (
    STRING,
    Only,
    Parsed,
    PromptProgressBody,
    RefusedError,
    RequestBody,
    Timings,
    Usage,
)
from rnn_engine_server.core.settings import Limits


class CompletionRequest(PromptBody):
    """A request to continue texts or tokens."""

    ignored: ClassVar = frozenset({"add_special_tokens", "request_id"})
    neutral: ClassVar = {"suffix": Only(("",), because="the model can't fill in text before an end")}

    prompt: Prompts = Field(
        description="What to continue. A list of prompts makes a list of choices, prompt by prompt."
    )
    echo: bool = Field(default=False, description="Begin the answer with the prompt.")
    logprobs: LogprobCount = Field(
        default=None,
        description="Log-probabilities of the tokens (with `echo` of the prompt's, too) and of this many others; -1: "
        "of as many as there may be.",
    )
    grammar_prefix_tokens: int = Field(
        default=0,
        ge=0,
        description="How many tokens at the end of the prompt are the beginning of the text that a grammar or schema "
        "describes. The answer continues that text.",
    )
    best_of: int | None = Field(
        default=None,
        ge=1,
        le=128,
        description="Make this many answers to a prompt, at least `n`, and return the `n` with the greatest mean "
        "log-probability a token, best first. Not with `stream` if it is more than `n`.",
    )
    marks: Annotated[list[int], FailFast()] = Field(
        default=[],
        max_length=8,
        description="Positions in the prompt, in tokens, whose states are kept in preference to others: the last seven "
        "before its end.",
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidRequestError("best_of", self.best_of, f"at least n, which is {self.n}")
        if self.stream and self.copies > self.n:
            raise InvalidRequestError(
                "best_of",
                self.best_of,
                f"null or n ({self.n}) with stream, since the best answers are known only at the end",
            )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_prompts(limits, "prompt", self.prompt, self.truncate_prompt_tokens)

    @property
    def scores_prompt(self) -> bool:
        return super().scores_prompt or (self.echo and self.logprobs is not None)

    @property
    def num_prompts(self) -> int:
        return len(self.prompt)

    @property
    def alternatives(self) -> int | None:
        is_ranked = self.copies > self.n  # the answers are compared by what the model gives to their tokens
        return 0 if self.logprobs is None and is_ranked else self.logprobs

    @property
    def copies(self) -> int:
        return self.best_of or self.n


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    seed: NotRequired[int]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]


class Choices(SavedState):
    """The fields of every object with choices."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    timings: NotRequired[Timings]


class Completion(Choices):
    """The answer to a completion, and with `stream` each event.

    In a stream, `usage` is sent only if `stream_options` asks for it.
    """

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]
    prompt_progress: NotRequired[PromptProgressBody]


_TEMPLATE = WorldTemplate()
_TEXT_ONLY = "the model reads and writes text only"


def _parse_names(value: object) -> dict[Role, str]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise RefusedError(value, 'an object of roles and names, such as {"user": "Bob"}')
    return {parse_role(role): name for role, name in value.items()}


Names: TypeAlias = Annotated[dict[Role, str], Parsed(_parse_names, {"type": "object", "additionalProperties": STRING})]


class TemplateBody(RequestBody):
    always_strict: ClassVar = True

    record: str = Field(default=_TEMPLATE.record, description="A message: {role} and {content} stand for its parts.")
    prefix: str = Field(
        default=_TEMPLATE.prefix, description="The end of the prompt: {assistant} stands for that role's name."
    )
    sep: str = Field(default=_TEMPLATE.sep, description="The separator between messages.")


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, dict) else value


_REASONING = {"enabled": "enable_thinking", "effort": "reasoning_effort", "max_tokens": "thinking_budget_tokens"}


class ChatRequest(PromptBody, ToolFields):
    """A request for the next message of a conversation."""

    ignored: ClassVar = frozenset({"cache_prompt", "n_keep", "prediction", "request_id", "verbosity"})
    neutral: ClassVar = {
        "add_special_tokens": (False,),
        "audio": Only((), because=_TEXT_ONLY),
        "best_of": (1,),
        "chat_template": (),
        "detokenize": (True,),
        "documents": ([],),
        "modalities": Only((["text"],), because=_TEXT_ONLY),
        "moderation": (),
        "separate_reasoning": (True,),
        "web_search_options": (),
    }
    aliases: ClassVar = {"max_completion_tokens": "max_tokens", "thinking_token_budget": "thinking_budget_tokens"}
    unfolded: ClassVar = {
        "thinking": {
            "type": ["object", "null"],
            "description": 'DeepSeek\'s form of `enable_thinking`: `{"type": "enabled"}`, `adaptive` or `disabled`. '
            "`budget_tokens` is `thinking_budget_tokens`.",
        },
        "reasoning": {
            "type": ["object", "null"],
            "description": "OpenRouter's form: `enabled` is `enable_thinking`, `effort` is `reasoning_effort`, and "
            "`max_tokens` is `thinking_budget_tokens`.",
        },
    }

    messages: Annotated[list[Message], FailFast(), history(leave_out_of_message), BeforeValidator(_one_or_more)] = (
        Field(min_length=1, description="The conversation so far: one message or a list.")
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
    enable_thinking: bool | None = Field(
        default=None,
        description="Think before the answer, or do not, if the chat template has thoughts; else without effect. Null: "
        "as the template does. In `chat_template_kwargs`, `enable_thinking` is passed to any template.",
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="How much to think before the answer, if the chat template supports it."
    )
    reasoning_format: ReasoningFormat | None = Field(
        default=None,
        description="`auto` and `deepseek` return the reasoning in `<think>...</think>` as `reasoning_content` and as "
        "`reasoning`, `none` leaves it in `content`. Null: the server's `--reasoning-format`.",
    )
    include_reasoning: bool = Field(default=True, description="False leaves the reasoning out of the answer.")
    thinking_budget_tokens: int | None = Field(
        default=None,
        ge=0,
        description="If the prompt begins the model's reasoning, end it after this many tokens, and begin the answer.",
    )
    add_generation_prompt: bool | None = Field(
        default=None,
        description="End the prompt with the beginning of an answer. Null: yes, unless the last message is the "
        "assistant's.",
    )
    continue_final_message: bool | None = Field(
        default=None,
        description="Continue the last message, which must be the assistant's, instead of answering it. Null: yes if "
        "the last message is the assistant's and `add_generation_prompt` is not true.",
    )
    stop: Stop = Field(
        default=(),
        description="Texts before which the answer ends, besides those of the chat template. They are not looked for "
        "in calls of tools.",
    )
    template_stop: bool | None = Field(
        default=None,
        description="Whether the texts with which the chat template ends a turn end the answer, too: a blank line for "
        "RWKV World. Null: yes. Without effect with a grammar, which ends the answer.",
    )
    logprobs: bool = Field(default=False, description="Add the log-probability of every token.")
    top_logprobs: LogprobCount = Field(
        default=None,
        ge=0,
        description="Add this many of the likeliest tokens, too; -1: as many as there may be. Only with `logprobs`.",
    )
    echo: bool = Field(default=False, description="Begin an answer that continues the last message with its text.")
    verbose: bool = Field(
        default=False,
        description="Add `__verbose` to an answer that is not streamed: its `prompt` is the text that the model read.",
    )

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        """Replace the objects `thinking` and `reasoning` by the fields that they stand for."""
        others = {name: value for name, value in fields.items() if name not in cls.unfolded}
        match fields.get("thinking"):
            case None:
                pass
            case {"type": "enabled" | "adaptive" | "auto" | "disabled" as kind, **rest}:
                others.setdefault("enable_thinking", kind != "disabled")
                others.setdefault("thinking_budget_tokens", rest.get("budget_tokens"))
            case value:
                raise RefusedError(value, '{"type": "enabled"} or {"type": "disabled"}', below="thinking")
        match fields.get("reasoning"):
            case None:
                pass
            case dict(reasoning):
                for name, field in _REASONING.items():
                    if reasoning.get(name) is not None:
                        others.setdefault(field, reasoning[name])
            case value:
                raise RefusedError(value, 'an object such as {"effort": "low"}', below="reasoning")
        return others

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
        """Return the texts that end the answer: the request's own stop strings, and those `of_template`."""
        default = self.adds_template_stop and not self.ignore_eos
        is_added = default if self.template_stop is None else self.template_stop
        return (*self.stop, *(of_template if is_added and self.answer_grammar is None else ()))

    @property
    def adds_template_stop(self) -> bool:
        """Whether the texts that end a turn of the chat template end the answer if the request does not say so."""
        return True

    @property
    def answer_schema(self) -> Tag | None:
        """The JSON schema that an answer without tool calls must follow, as a tagged text; None if there is none.

        Raises InvalidRequestError for a grammar of another kind: its texts can't be distinguished from calls.
        """
        grammar = self.answer_grammar
        if grammar is None:
            return None
        if grammar.kind == "json_object":
            return Tag("", {"type": "object"}, "")
        if grammar.kind != "json_schema":
            raise InvalidRequestError(grammar.field, grammar.text, "null or a JSON schema unless tool_choice is none")
        try:
            schema = json.loads(grammar.text)
        except (ValueError, RecursionError) as error:
            raise grammar.refused(f"it is not JSON: {error}") from None
        return Tag("", schema, "", grammar.field, grammar.strict)

    @property
    def conversation(self) -> Conversation:
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return Conversation(
            [message.for_template for message in self.messages],
            self.offered if self.choice.mode != "none" else (),
            continues=self.continues,
            answers=self.add_generation_prompt is not False,
            variables={**effort, **self.chat_template_kwargs},
            thinking=self.enable_thinking,
        )

    @property
    def continues(self) -> bool:
        """True if the answer continues the last message instead of starting a new one."""
        if self.continue_final_message is not None:
            return self.continue_final_message
        return self._ends_with_assistant and not self.add_generation_prompt

    @property
    def _ends_with_assistant(self) -> bool:
        return bool(self.messages) and self.messages[-1].role is Role.ASSISTANT and not self.messages[-1].calls

    def template_of(self, of_model: ChatTemplate) -> ChatTemplate:
        """Return the chat template for the conversation: the model's, `of_model`, unless the request changes it.

        The request may give texts or names.
        """
        if self.template is None and not self.names:
            return of_model
        base = of_model if isinstance(of_model, WorldTemplate) else _TEMPLATE
        return replace(base, names=self.names, **({} if self.template is None else self.template.model_dump()))


FinishWord: TypeAlias = Literal["stop", "length", "tool_calls", "function_call"]


class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """The log-probabilities of a message's tokens.

    `content` lists those of the message's content; its first and last token may be cut to fit the content.
    """

    content: list[ChatTokenLogprob]
    refusal: None


class AnsweredFunction(TypedDict):
    name: str
    arguments: str


class AnsweredCall(TypedDict):
    """A tool call in an answer, which the client is asked to make.

    `arguments` are JSON that follows the tool's schema, unless the answer is cut.
    """

    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AssistantMessage(TypedDict):
    """The assistant's message in an answer.

    `content` is null if there are only calls. `reasoning_content`, and the same as `reasoning`, is what the model
    thought before the content.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
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
    """The field that `verbose` adds to an answer: `prompt`, the text that the model read."""

    prompt: str


_VerboseField = TypedDict("_VerboseField", {"__verbose": NotRequired[Verbose]})  # no name for a class's body


class ChatCompletion(Choices, _VerboseField):
    """The answer to a conversation: one or more choices of the next message."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[dict[str, PromptLogprob] | None]]


class InputTokens(TypedDict):
    """The answer with the number of tokens in the prompt of a conversation."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """The next piece of tool call number `index`, in an event of a stream.

    The first piece has the call's id and the tool's name.
    """

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict):
    """The next piece of the assistant's message, in an event of a stream.

    The first event has the role, and null as `content`.
    """

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    refusal: NotRequired[None]
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
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


class ChatCompletionChunk(Choices):
    """One event of a chat completion's stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    prompt_progress: NotRequired[PromptProgressBody]


def shared_fields(body: GenerationBody) -> dict[str, Any]:
    """Return, by name, the values of those fields of `body` that all kinds of generation share.

    They serve to build another kind of body.
    """
    return {name: getattr(body, name) for name in GenerationBody.model_fields}


class TranslatedChat(ChatRequest):
    """A chat request made from a request of another API."""

    @classmethod
    def of(cls, body: GenerationBody, **fields: Any) -> Self:  # noqa: ANN401
        """Make a chat request from another API's `body`: from the fields that both share, and from the chat's `fields`.

        The fields are not checked one by one. Raises InvalidRequestError for fields that contradict each other.
        """
        return cls.model_construct(body.model_fields_set | fields.keys(), **{**shared_fields(body), **fields})
