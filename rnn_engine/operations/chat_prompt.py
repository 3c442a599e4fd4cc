"""Turn a conversation into a prompt's tokens, and its tools into a grammar for the model's answer.

Text from clients never becomes a special token: if a message spells one, the text is cut within it before it is
tokenised. The template's own text keeps its special tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from os.path import commonprefix
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

from rnn_engine.chat_template import ChatMessage, ChatTemplate, Conversation, Rendered, Role, Tool, ToolCall
from rnn_engine.chat_template.answer import CALL_BEGINS, THINK_BEGINS, THINK_ENDS
from rnn_engine.chat_template.tools import ToolFormat, to_json
from rnn_engine.errors import InvalidRequestError
from rnn_engine.grammar import Grammar, Tag, tagged_text
from rnn_engine.interface import EngineLike
from rnn_engine.pauses import pause
from rnn_engine.types import end_of_text
from rnn_engine_states.frozen import FrozenState

_MAX_CHARACTERS = 1 << 24

NO_SIZES: Mapping[int, int] = MappingProxyType({})


class HasSpecialTokens(Protocol):
    """Anything that knows the special tokens of a vocabulary, by their texts."""

    @property
    def special_tokens(self) -> Mapping[str, int]: ...


class Tokenizing(Protocol):
    """The part of an engine that makes tokens of prompts, so that they can also be made without an engine."""

    @property
    def info(self) -> HasSpecialTokens: ...

    def tokenize(self, text: str) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int]) -> bytes: ...


def token_positions(
    engine: Tokenizing, tokens: Sequence[int], offsets: Sequence[int], sizes: Mapping[int, int] = NO_SIZES
) -> tuple[int, ...]:
    """Return how many of the `tokens` end at or before each byte offset; `sizes` has those of special tokens."""
    lengths = {token: len(engine.detokenize((token,))) for token in set(tokens)} | dict(sizes)
    ends = list(accumulate(lengths[token] for token in tokens))
    return tuple(bisect_right(ends, offset) for offset in offsets)


ToolMode: TypeAlias = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """If calls are forbidden (`none`), allowed (`auto`) or required, and of which tools; `names` None is all."""

    mode: ToolMode
    names: tuple[str, ...] | None = None

    def callable_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Return those of `tools` that this choice allows the model to call."""
        if self.mode == "none":
            return ()
        return [tool for tool in tools if self.names is None or tool.name in self.names]


def tool_grammar(
    format_: ToolFormat,
    tools: Sequence[Tool],
    prompt: ChatPrompt | None = None,
    *,
    required: bool,
    parallel: bool,
    otherwise: Tag | None = None,
) -> Grammar:
    """Return the grammar of a model's answers that may call `tools`, or must call one if `required`.

    Once the text begins a call, only the names of `tools` can follow, and arguments by their schemas. A format without
    a closing text allows one call an answer. If a call is required, the answer begins with a space unless `prompt` ends
    with one or within thoughts, and may end with its first stop string. If `otherwise` is given, an answer without
    calls is this tag.
    """
    before = f"{format_.opening}\n" if format_.opening else ""
    after = f"\n{format_.closing}" if format_.closing else ""
    from_start = required or otherwise is not None
    begins_at_once = not from_start or prompt is None or prompt.text[-1:].isspace() or prompt.thought
    lead = "" if begins_at_once else " "
    begins = [f'{lead}{before}{{"name": {to_json(tool.name)}, "{format_.arguments}": ' for tool in tools]
    tags = [
        Tag(
            begin,
            {"type": "object", **tool.parameters},
            f"}}{after}",
            f"tools.{tool.name}",
            tool.strict,
            is_object=True,
        )
        for begin, tool in zip(begins, tools, strict=True)
    ]
    trigger = commonprefix(begins) if from_start else format_.opening or CALL_BEGINS  # noqa: RUF071  # of texts
    several = parallel and bool(format_.closing)
    ending = prompt.stop[0] if prompt is not None and prompt.stop else ""
    return tagged_text(tags, trigger, required=required, parallel=several, ending=ending, otherwise=otherwise)


_CUTS = [chr(code) for code in range(0xFDD0, 0xFDEF)]  # noncharacters, which hardly any text contains


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt made from a conversation: its tokens, its text, and the texts and tokens that end the answer."""

    tokens: list[int]
    text: str
    turns: Mapping[int, int]  # number of messages -> their number of tokens; see `Rendered.turn_ends`
    stop: tuple[str, ...]
    stop_tokens: tuple[int, ...]  # besides the end of text
    thought: bool | None  # True: the answer begins inside thoughts; False: they have just been closed; None: neither

    @property
    def ends_in_tag(self) -> bool:
        """True if the prompt ends within a tag for thoughts, so that the model must write the tag's ">"."""
        return self.thought is not None and self.text.endswith((THINK_BEGINS, THINK_ENDS))


def text_before_chat(engine: Tokenizing, initial_state: FrozenState | None, template: ChatTemplate) -> str:
    """Return the text to run between what the model has read in `initial_state` and a chat, such as a blank line."""
    if initial_state is None or initial_state.num_tokens == 0:
        return ""
    return template.follow(engine.detokenize(initial_state.last_tokens).decode(errors="replace"))


def make_chat_prompt(
    engine: Tokenizing, template: ChatTemplate, conversation: Conversation, most_characters: int, *, before: str = ""
) -> ChatPrompt:
    """Render a conversation and tokenise it after the text `before`. Raises InvalidRequestError as templates do."""
    special = engine.info.special_tokens
    texts = _texts(conversation)
    cut = _unused_cut(texts)
    rendered = template.render(_guard(engine, conversation, texts, special, cut), most_characters)
    tokens = _tokenize(engine, before + rendered.text, special, cut)
    offsets = _byte_offsets(before, rendered, cut)
    pause()
    sizes = {token: len(text.encode()) for text, token in special.items()}
    positions = token_positions(engine, tokens, list(offsets.values()), sizes)
    return ChatPrompt(
        tokens,
        rendered.text.replace(cut, ""),
        dict(zip(offsets, positions, strict=True)),
        rendered.stop,
        tuple(special[text] for text in rendered.stop_tokens if text in special),
        _thought(rendered.text, conversation),
    )


def make_answer(
    engine: Tokenizing, template: ChatTemplate, conversation: Conversation, answer: ChatMessage, most_characters: int
) -> list[int]:
    """Return the tokens that the model has to write after the prompt of `conversation` to answer with `answer`.

    The last of them end the answer: they are the template's stop token or stop text, or else token 0. Raises
    InvalidRequestError as `make_chat_prompt` does, or if the template does not write an answer after its prompt.
    """
    special = engine.info.special_tokens
    answered = replace(conversation, messages=[*conversation.messages, answer], answers=False)
    texts = _texts(answered)
    cut = _unused_cut(texts)
    prompt = template.render(_guard(engine, conversation, texts, special, cut), most_characters)
    whole = template.render(_guard(engine, answered, texts, special, cut), most_characters).text
    begins = len(prompt.text)
    if not whole.startswith(prompt.text):  # the prompt may end with empty thoughts, which only the last answer has
        begins = prompt.text.rfind(THINK_BEGINS)
        if begins < 0 or not whole.startswith(prompt.text[:begins]):
            allowed = "a conversation whose last answer the chat template writes where the answer's prompt ends"
            raise InvalidRequestError("messages", answer.content, allowed)
    text = whole[begins:]
    ends = [text.rfind(stop) + len(stop) for stop in (*prompt.stop, *prompt.stop_tokens) if stop in text]
    if ends:
        return _tokenize(engine, text[: max(ends)], special, cut)
    return [*_tokenize(engine, text, special, cut), end_of_text(special)]


def prompt_after(engine: EngineLike, initial_state: FrozenState | None, conversation: Conversation) -> ChatPrompt:
    """Return the prompt by the model's template after `initial_state`, of any length; see `make_chat_prompt`."""
    template = engine.info.chat_template
    before = text_before_chat(engine, initial_state, template)
    return make_chat_prompt(engine, template, conversation, _MAX_CHARACTERS, before=before)


def _unused_cut(texts: str) -> str:
    """Return a noncharacter that is not in `texts`. Raises InvalidRequestError if they have all of them."""
    unused = next((character for character in _CUTS if character not in texts), None)
    if unused is None:
        raise InvalidRequestError(
            "messages", "all noncharacters from U+FDD0 to U+FDEE", "text in which at least one of them is missing"
        )
    return unused


def _texts(conversation: Conversation) -> str:
    """Return all texts of a conversation, one after the other."""
    parts: list[str] = [repr(tool) for tool in conversation.tools]
    for message in conversation.messages:
        parts += message.content, message.reasoning or "", message.name or "", message.tool_call_id or ""
        parts += chain.from_iterable((call.name, call.arguments, call.id) for call in message.tool_calls)
    return "".join(parts)


def _guard(
    engine: Tokenizing, conversation: Conversation, texts: str, special: Mapping[str, int], cut: str
) -> Conversation:
    """Return the conversation with the character `cut` put into each special token that a client's text spells.

    `texts` has at least the texts of all messages. `special` maps the texts of special tokens to their ids. In an
    assistant's messages, only special tokens without bytes are cut: others, such as those around its thoughts, are
    allowed there.
    """
    if not conversation.tools and not _pattern(special).search(texts):
        return conversation
    every = _cutter(special, cut)
    silent = _cutter([text for text, token in special.items() if not engine.detokenize((token,))], cut)
    messages = [
        _guard_message(message, silent if message.role is Role.ASSISTANT else every)
        for message in conversation.messages
    ]
    tools = [
        replace(
            tool,
            name=every(tool.name),
            description=every(tool.description),
            parameters=_guard_value(tool.parameters, every),
        )
        for tool in conversation.tools
    ]
    return replace(conversation, messages=messages, tools=tools)


def _cutter(texts: Collection[str], cut: str) -> Callable[[str], str]:
    """Return a function that inserts `cut` after the first character of each of `texts` that its argument contains."""
    pattern = _pattern(texts)
    return lambda text: pattern.sub(lambda match: match[0][0] + cut + match[0][1:], text)


def _pattern(texts: Collection[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of `texts`, the longest first, but no empty one."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True) if text) or "(?!)")


def _guard_message(message: ChatMessage, guard: Callable[[str], str]) -> ChatMessage:
    return replace(
        message,
        content=guard(message.content),
        tool_calls=tuple(
            ToolCall(guard(each.name), guard(each.arguments), guard(each.id)) for each in message.tool_calls
        ),
        tool_call_id=message.tool_call_id and guard(message.tool_call_id),
        name=message.name and guard(message.name),
        reasoning=message.reasoning and guard(message.reasoning),
    )


def _guard_value(value: Any, guard: Callable[[str], str]) -> Any:  # noqa: ANN401
    match value:
        case str():
            return guard(value)
        case list():
            return [_guard_value(item, guard) for item in value]
        case dict():
            return {guard(name): _guard_value(item, guard) for name, item in value.items()}
    return value


def _tokenize(engine: Tokenizing, text: str, special: Mapping[str, int], cut: str) -> list[int]:
    """Return the tokens of a text's pieces between characters `cut`; special tokens become their ids."""
    unknown = [each for each in special if each in text and engine.tokenize(each) != [special[each]]]
    pieces = text.split(cut)
    if unknown:
        pattern = re.compile(f"({'|'.join(map(re.escape, unknown))})")
        pieces = [part for piece in pieces for part in pattern.split(piece)]
    return [token for piece in pieces for token in ([special[piece]] if piece in unknown else engine.tokenize(piece))]


def _byte_offsets(before: str, rendered: Rendered, cut: str) -> dict[int, int]:
    """Return number of messages -> byte offset of their end in `before` and the rendered text without cuts."""
    offsets: dict[int, int] = {}
    start, num_bytes = 0, len(before.encode())
    for count, end in sorted(rendered.turn_ends.items(), key=lambda turn: turn[1]):
        num_bytes += len(rendered.text[start:end].replace(cut, "").encode())
        offsets[count], start = num_bytes, end
    return offsets


def _thought(text: str, conversation: Conversation) -> bool | None:
    """Return True if the prompt `text` ends inside thoughts, False if it has just closed them, None otherwise."""
    if conversation.continues:
        text = conversation.messages[-1].content
        return True if text.rfind(THINK_BEGINS) > text.rfind(THINK_ENDS) else None
    end = text.rstrip()
    if end.endswith((THINK_BEGINS, f"{THINK_BEGINS}>")):
        return True
    return False if end.endswith((THINK_ENDS, f"{THINK_ENDS}>")) else None
