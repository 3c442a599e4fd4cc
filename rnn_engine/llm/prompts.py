"""Turn what callers of `LLM` pass, such as prompts and messages, into requests, and their events into completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeAlias, TypedDict, TypeVar, get_args

from typing_extensions import TypeIs

from rnn_engine.chat_template import ROLE_WORDS, ChatMessage, Conversation, Role, Tool, ToolCall, find_role
from rnn_engine.chat_template.answer import THINK_CLOSES, AnswerForm, AnswerPart, AnswerReader, joined, whole_calls
from rnn_engine.engine import Engine
from rnn_engine.errors import (
    InvalidRequestError,
    StateError,
    StepError,
    check_choice,
    check_list,
    check_token_ids,
    is_whole,
)
from rnn_engine.grammar import Grammar
from rnn_engine.interface import EngineLike
from rnn_engine.llm.results import Completion, SamplingParams
from rnn_engine.llm.state import State
from rnn_engine.operations.chat_prompt import ChatPrompt, ToolMode, prompt_after, tool_grammar
from rnn_engine.operations.naming import settle_end
from rnn_engine.requests import (
    Finished,
    GenerateRequest,
    MixedState,
    Started,
    StateMix,
    TextDelta,
    TokenInfo,
    empty_prompt,
)
from rnn_engine.sampling.masks import Thinking
from rnn_engine.sampling.params import MixKind
from rnn_engine_states.frozen import FrozenState

T = TypeVar("T")

Prompt: TypeAlias = str | Sequence[int]
"""A text to continue, or its token ids."""

Message: TypeAlias = ChatMessage | Mapping[str, object]
"""A message of a chat, such as {"role": "user", "content": "Hello"}."""

Messages: TypeAlias = Sequence[Message]
"""The messages of a chat, the oldest first."""

StateChoice: TypeAlias = State | Sequence[tuple[State | None, float]]
"""A state to start from, or several with weights, of which each token's distributions are mixed.

None is the empty state.
"""

Schema: TypeAlias = Mapping[str, object]
"""A JSON schema."""

OnDone: TypeAlias = Callable[[int, Completion], None]
"""Called with the index of a prompt and its completion."""

Params: TypeAlias = SamplingParams | Sequence[SamplingParams]
"""The parameters of all prompts, or of each."""


class CallOptions(TypedDict, total=False):
    """The keywords of `AsyncLLM.generate`."""

    state: StateChoice | None
    mix: MixKind
    keep_state: bool
    progress: bool | None
    on_done: OnDone


class ChatCallOptions(CallOptions, total=False):
    """The keywords of `AsyncLLM.chat`."""

    tools: Sequence[Tool | Mapping[str, object]]
    tool_choice: ToolMode
    thinking: bool | None


_PLAIN = AnswerForm(divides_thoughts=False, strips=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the engine, and the form by which its text is divided into thoughts, content and calls."""

    request: GenerateRequest
    form: AnswerForm = _PLAIN


@dataclass(frozen=True, slots=True)
class Start:
    """The states from which texts start, with their weights; a single one has the weight 1."""

    states: Sequence[tuple[FrozenState | None, float]] = ((None, 1.0),)
    kind: MixKind = "log"

    @classmethod
    def of(cls, engine: EngineLike, choice: StateChoice | None, kind: MixKind = "log") -> Start:
        """Return the start that a caller chose.

        Raises StateError for a state of another model, and InvalidRequestError for what is no state or mix of states.
        """
        check_choice("mix", kind, get_args(MixKind))
        if choice is None:
            return cls()
        pairs: Sequence[tuple[State | None, float]] = [(choice, 1.0)] if isinstance(choice, State) else choice
        allowed = "a State, or a list of at least one pair of a State or None and its weight"
        check_list("state", pairs, allowed)
        if len(pairs) == 0 or not all(map(_is_weighted_state, pairs)):
            raise InvalidRequestError("state", choice, allowed)
        for state, _ in pairs:
            check_model(engine, state)
        return cls([(None if state is None else state.frozen, weight) for state, weight in pairs], kind)

    @property
    def only(self) -> FrozenState | None:
        """The state to start from. Raises InvalidRequestError if there are several."""
        if len(self.states) > 1:
            raise InvalidRequestError("state", f"{len(self.states)} states", "one state, since nothing is drawn here")
        return self.states[0][0]

    def request(self, calls: Sequence[GenerateRequest]) -> GenerateRequest:
        """Return the request for one text that starts from all states; `calls` has one request for each of them."""
        if len(calls) == 1:
            return calls[0]
        others = [
            MixedState(weight, call.initial_state, call.prompt, call.turn_positions)
            for (_, weight), call in zip(self.states[1:], calls[1:], strict=True)
        ]
        return replace(calls[0], mix=StateMix(self.states[0][1], others, self.kind))


def _is_weighted_state(pair: object) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and (pair[0] is None or isinstance(pair[0], State))


def check_model(engine: EngineLike, state: State | None) -> None:
    """Raise StateError if `state` belongs to another model than that of `engine`."""
    if state is not None and state.model != engine.state_files.model:
        raise StateError(
            f"state: it belongs to another model (RWKV {state.shape.version}, weights {state.model}); expected a state "
            f"of {engine.info.model}"
        )


def continuation(
    engine: EngineLike,
    prompt: Prompt,
    params: SamplingParams,
    start: Start,
    grammar: Grammar | None = None,
    *,
    field: str = "prompt",
) -> Asked:
    """Return the request that continues `prompt`, which errors call `field`. Raises InvalidRequestError."""
    tokens = prompt_tokens(engine, prompt, field)
    calls = []
    for frozen, _ in start.states:
        initial = None if frozen is None else frozen.for_request
        calls.append(_call(engine, tokens or empty_prompt(engine.info.end_of_text, initial), params, frozen))
    return _checked(engine, Asked(replace(start.request(calls), grammar=grammar)))


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a chat's answer may be: with thoughts or without, with calls of tools or without."""

    tools: Sequence[Tool | Mapping[str, object]] = ()
    tool_mode: ToolMode = "auto"
    thinking: bool | None = None  # None: as the model's template has it


def answer(
    engine: EngineLike,
    messages: str | Messages,
    params: SamplingParams,
    start: Start,
    options: ChatOptions,
    grammar: Grammar | None = None,
    *,
    field: str = "messages",
) -> Asked:
    """Return the request that answers a conversation, which errors call `field`. Raises InvalidRequestError."""
    check_list("tools", options.tools, "a list of tools")
    check_choice("tool_choice", options.tool_mode, get_args(ToolMode))
    tools = [parse_tool(number, tool) for number, tool in enumerate(options.tools)]
    conversation = Conversation(parse_messages(messages, field), tools=tools, thinking=options.thinking)
    prompts = [prompt_after(engine, frozen, conversation) for frozen, _ in start.states]
    first = prompts[0]
    if tools and options.tool_mode != "none":
        grammar = tool_grammar(
            engine.info.chat_template.tool_format, tools, first, required=options.tool_mode == "required", parallel=True
        )
    calls = [
        _call(engine, prompt.tokens, params, frozen, prompt)
        for prompt, (frozen, _) in zip(prompts, start.states, strict=True)
    ]
    thinking = None
    if first.thought and grammar is not None:
        thinking = Thinking(THINK_CLOSES.encode(), engine.tokenize(f"\n{THINK_CLOSES}\n"))
    written = engine.info.chat_template.tool_format if tools else None
    request = replace(start.request(calls), grammar=grammar, thinking=thinking, tool_format=written, strips=True)
    form = AnswerForm(
        first.thought,
        bracket=first.ends_in_tag,
        tools=engine.info.chat_template.tool_format,
        names=[tool.name for tool in tools],
        must_call=bool(tools) and options.tool_mode == "required",
    )
    return _checked(engine, Asked(request, form))


def prompt_tokens(engine: EngineLike, prompt: Prompt, field: str = "prompt") -> Sequence[int]:
    """Return the token ids of a prompt. Raises InvalidRequestError if it is neither a text nor token ids."""
    if isinstance(prompt, str):
        return engine.tokenize(prompt)
    check_list(field, prompt, "a text or a list of token ids")
    tokens = list(prompt)
    check_token_ids(f"{field} token", tokens, engine.info.shape.vocab_size)
    return tokens


def tokens_of_each(engine: EngineLike, texts: Sequence[Prompt], field: str) -> list[Sequence[int]]:
    """Return the token ids of each of a list of texts. Raises InvalidRequestError, which names the first empty one."""
    check_list(field, texts, "a list of texts or of lists of token ids")
    tokens = [prompt_tokens(engine, text, f"{field}.{number}") for number, text in enumerate(texts)]
    for number, each in enumerate(tokens):
        if not each:
            raise InvalidRequestError(f"{field}.{number}", texts[number], "at least one token")
    return tokens


def tokens_of_pairs(
    engine: EngineLike, pairs: Sequence[tuple[Prompt, Prompt]]
) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Return the token ids of each of a list of pairs of texts. Raises InvalidRequestError, which names the pair."""
    check_list("pairs", pairs, "a list of pairs of texts")
    tokens = []
    for number, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2:
            raise InvalidRequestError(f"pairs.{number}", pair, "a pair of a text and its continuation")
        first, second = (prompt_tokens(engine, text, f"pairs.{number}.{place}") for place, text in enumerate(pair))
        if not second:
            raise InvalidRequestError(f"pairs.{number}.1", pair[1], "at least one token")
        tokens.append((first, second))
    return tokens


def parse_messages(messages: str | Messages, field: str = "messages") -> list[ChatMessage]:
    """Return a conversation's messages; a text is one of the user's. Raises InvalidRequestError, naming the message."""
    if isinstance(messages, str):
        return [ChatMessage(Role.USER, messages)]
    check_list(field, messages, "a text or a list of messages")
    if len(messages) == 0:
        raise InvalidRequestError(field, list(messages), "at least one message")
    return [_parse_message(f"{field}.{number}", message) for number, message in enumerate(messages)]


def parse_tool(number: int, tool: Tool | Mapping[str, object]) -> Tool:
    """Return a tool; a mapping is a function as OpenAI's API describes it, with or without the `type` around it."""
    if isinstance(tool, Tool):
        return tool
    described = tool.get("function", tool) if isinstance(tool, Mapping) else tool
    match described:
        case {"name": str(name), **rest} if set(rest) <= {"description", "parameters", "strict"}:
            unset = Tool(name)
            parameters = rest.get("parameters") or unset.parameters
            if isinstance(parameters, Mapping):
                return Tool(name, str(rest.get("description") or ""), parameters, bool(rest.get("strict")))
    allowed = "a function with a `name` and any of `description`, `parameters` (a JSON schema) and `strict`"
    raise InvalidRequestError(f"tools.{number}", tool, allowed)


def _parse_message(field: str, message: Message) -> ChatMessage:
    if isinstance(message, ChatMessage):
        return message
    known = {"role", "content", "name", "tool_call_id"}
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message) <= known:
        raise InvalidRequestError(field, message, "a ChatMessage, or a dict with `role` and `content`")
    role, content = message["role"], message["content"]
    found = find_role(role) if isinstance(role, str) else None
    if found is None:
        raise InvalidRequestError(f"{field}.role", role, f"one of {', '.join(ROLE_WORDS)}")
    if not isinstance(content, str):
        raise InvalidRequestError(f"{field}.content", content, "a text")
    name, call = message.get("name"), message.get("tool_call_id")
    return ChatMessage(
        found, content, name=None if name is None else str(name), tool_call_id=None if call is None else str(call)
    )


def _call(
    engine: EngineLike,
    tokens: Sequence[int],
    params: SamplingParams,
    frozen: FrozenState | None,
    chat: ChatPrompt | None = None,
) -> GenerateRequest:
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError("params", params, "SamplingParams")
    call = GenerateRequest(
        prompt=tokens,
        initial_state=None if frozen is None else frozen.for_request,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stop=params.stop,
        stop_tokens=params.stop_token_ids,
        sampling=params.resolved(engine.tokenize),
        logprobs=params.logprobs,
    )
    if chat is None:
        return call
    return replace(
        call,
        turn_positions=sorted(chat.turns.values()),
        stop=(*call.stop_bytes, *(text.encode() for text in chat.stop)),
        stop_tokens=(*call.stop_tokens, *chat.stop_tokens),
    )


def _checked(engine: EngineLike, asked: Asked) -> Asked:
    asked.request.check(engine.info.shape, engine.info.max_logprobs, engine.info.num_slots)
    return asked


def schema_of(schema: type[T]) -> tuple[Schema, Callable[[str], T]]:
    """Return the JSON schema of a type, without further properties, and the function that parses JSON as that type."""
    from pydantic import PydanticUserError, TypeAdapter

    try:
        adapter = TypeAdapter(schema)
        described = adapter.json_schema()
    except (PydanticUserError, KeyError) as error:  # KeyError: a text, which pydantic takes for a type's name
        allowed = "a JSON schema as a dict, or a type that pydantic has a JSON schema for"
        raise InvalidRequestError("schema", schema, allowed) from error
    _close_objects(described)
    return described, adapter.validate_json


def _close_objects(schema: object) -> None:
    """Allow no further properties in all objects of a JSON schema that lists its properties, at any depth."""
    if isinstance(schema, list):
        for each in schema:
            _close_objects(each)
    elif isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for each in schema.values():
            _close_objects(each)


def params_of(params: Params, count: int) -> Sequence[SamplingParams]:
    """Return the parameters of each of `count` prompts. Raises InvalidRequestError if there are not as many."""
    if isinstance(params, SamplingParams):
        return [params] * count
    check_list("params", params, "SamplingParams, or a list of them")
    if len(params) != count:
        raise InvalidRequestError("params", f"{len(params)} of them", f"one, or one for each of the {count} prompts")
    return params


def is_prompt(prompts: Prompt | Sequence[Prompt]) -> TypeIs[Prompt]:
    """Return True for a text or token ids; False for a list of prompts, also an empty one."""
    if isinstance(prompts, str):
        return True
    check_list("prompts", prompts, "a text, a list of token ids, or a list of these")
    return len(prompts) > 0 and is_whole(prompts[0])


def is_messages(prompt: Prompt | Messages) -> TypeIs[Messages]:
    """Return True for the messages of a chat; False for a text or token ids."""
    if isinstance(prompt, str):
        return False
    check_list("prompt", prompt, "a text, a list of token ids, or a list of messages")
    return len(prompt) > 0 and isinstance(prompt[0], ChatMessage | Mapping)


def is_conversation(messages: str | Messages | Sequence[Messages]) -> TypeIs[str | Messages]:
    """Return True for one conversation; False for a list of conversations, also an empty one."""
    if isinstance(messages, str):
        return True
    check_list("messages", messages, "a text, a list of messages, or a list of these")
    return len(messages) > 0 and isinstance(messages[0], ChatMessage | Mapping)


async def complete(engine: Engine, asked: Asked, start: Start, *, keep_state: bool) -> Completion:
    """Run one request to its end."""
    request = replace(asked.request, keep_end=keep_state)
    started, finished = Started(0, 0), None
    text: list[str] = []
    tokens: list[TokenInfo] = []
    async with aclosing(engine.generate(request, wait_for_room=True)) as events:
        async for event in events:
            match event:
                case Started():
                    started = event
                case TextDelta():
                    text.append(event.text)
                    tokens += event.tokens
                case Finished():
                    finished = event
    if finished is None:
        raise StepError("the generation ended early")
    whole = "".join(text)
    state = None
    if finished.end is not None:
        frozen = await settle_end(engine, start.states[0][0], request, finished.end, whole.encode())
        state = State.of(frozen, engine.state_files)
    return _completion(asked.form, whole, tokens, started, finished, state)


def _completion(
    form: AnswerForm, text: str, tokens: Sequence[TokenInfo], started: Started, finished: Finished, state: State | None
) -> Completion:
    reader = AnswerReader(form)
    pieces = whole_calls(reader, [*reader.feed(text), *reader.finish()])
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.part is AnswerPart.CALL:
            calls.append(ToolCall(piece.text, ""))
        elif piece.part is AnswerPart.ARGUMENTS:
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + piece.text)
    return Completion(
        text=joined(pieces, AnswerPart.CONTENT),
        tokens=tuple(info.token for info in tokens),
        finish_reason=finished.reason,
        prompt_tokens=started.prompt_tokens,
        cached_tokens=started.cached_tokens,
        completion_tokens=finished.completion_tokens,
        seed=finished.seed,
        logprobs=tuple(tokens) if tokens and tokens[0].logprob is not None else (),
        reasoning=joined(pieces, AnswerPart.REASONING) or None,
        tool_calls=tuple(calls),
        state=state,
    )
