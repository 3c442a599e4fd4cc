"""A conversation, the protocol `ChatTemplate`, which turns one into a prompt, and the template of RWKV World models.

A World model's prompt has records such as "User: hello", joined by blank lines, and ends with the name of the next
speaker, `Assistant:`. A blank line inside a message would look like the end of a record, so runs of blank lines become
one line break.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate, takewhile
from types import MappingProxyType
from typing import Protocol

from rnn_engine.chat_template.tools import Tool, ToolCall, ToolFormat, ToolFormats, tool_json
from rnn_engine.errors import InvalidRequestError
from rnn_engine.pauses import pause


class Role(Enum):
    """The role of a message's speaker; the value is the name that RWKV World models read."""

    SYSTEM = "System"
    USER = "User"
    ASSISTANT = "Assistant"
    OBSERVATION = "Observation"


ROLE_WORDS: Mapping[str, Role] = MappingProxyType(
    {
        "system": Role.SYSTEM,
        "developer": Role.SYSTEM,
        "user": Role.USER,
        "assistant": Role.ASSISTANT,
        "observation": Role.OBSERVATION,
        "tool": Role.OBSERVATION,
        "function": Role.OBSERVATION,
    }
)


def find_role(word: str) -> Role | None:
    """Return the role that a client's word means, such as "developer", in any case; None for an unknown word."""
    return ROLE_WORDS.get(word.lower())


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation: its role, its content, and any tool calls and thoughts of the assistant."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of the assistant
    tool_call_id: str | None = None  # of the call that the message answers
    name: str | None = None  # of the tool that it comes from
    reasoning: str | None = None  # the assistant's thoughts before its content


def count_leading_system(roles: Iterable[Role]) -> int:
    """Return how many system messages come first in a conversation whose messages have these roles."""
    return sum(1 for _ in takewhile(lambda role: role is Role.SYSTEM, roles))


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a chat template: messages, tools, and what the prompt should end with."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool] = ()
    continues: bool = False  # the answer continues the last message, the assistant's
    answers: bool = True  # the prompt ends at the beginning of an answer; ignored if it `continues`
    variables: Mapping[str, object] = field(default_factory=dict)  # for templates, such as enable_thinking
    thinking: bool | None = None  # think before the answer, if the template has thoughts; None = the template decides

    @property
    def num_leading_system(self) -> int:
        return count_leading_system(message.role for message in self.messages)

    @property
    def characters(self) -> int:
        """The approximate number of characters in all messages and tools."""
        of_messages = sum(len(message.content) + len(message.reasoning or "") for message in self.messages)
        of_messages += sum(len(call.name + call.arguments) for each in self.messages for call in each.tool_calls)
        return of_messages + sum(len(tool_json(tool)) for tool in self.tools)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt that a chat template made of a conversation, and the texts that end the model's answer."""

    text: str
    turn_ends: Mapping[int, int] = field(default_factory=dict)
    """Number of messages -> number of characters at the beginning of `text` that these messages make up.

    A number of messages is left out if a longer conversation does not begin with the same text. The entry for 0 is the
    length of the text that describes the tools."""
    stop: tuple[str, ...] = ()  # texts before which an answer ends, unless its request says otherwise
    stop_tokens: tuple[str, ...] = ()  # special tokens that end it, besides the end of text


class ChatTemplate(Protocol):
    """The protocol of templates that turn a conversation into a prompt. Safe to use from several threads."""

    @property
    def source(self) -> Mapping[str, str] | str:
        """The template's source for clients: the texts around the messages, or a Jinja template's own text."""

    @property
    def as_jinja(self) -> str:
        """The template as the text of a Jinja template, for clients that render conversations themselves."""

    @property
    def tool_format(self) -> ToolFormat: ...

    def most_characters(self, conversation: Conversation) -> int:
        """Return the approximate work of rendering a conversation, in characters, without rendering it.

        It also bounds the length of the prompt, if a bound is known beforehand.
        """

    def render(self, conversation: Conversation, most_characters: int) -> Rendered:
        """Return the prompt. Raises InvalidRequestError if the template refuses, takes too long or makes too much."""

    def follow(self, text: str) -> str:
        """Return the separator between a text that a model has taken in, which ends with `text`, and a chat."""


_EFFORTS = {"minimal": " think a bit", "low": " think a bit", "high": " think a lot", "xhigh": " think a lot"}


@dataclass(frozen=True, slots=True)
class WorldTemplate:
    """The chat template of RWKV World models, with settings for the texts around the messages.

    `record` may hold {role} and {content}; `prefix` may hold {assistant}, {user}, {system} and {observation}, which
    stand for the names of the roles. The description of the tools is appended to the first system message.
    """

    record: str = "{role}: {content}"
    prefix: str = "{assistant}:"
    sep: str = "\n\n"
    names: Mapping[Role, str] = field(default_factory=dict)  # a role without an entry has its own name
    tool_format: ToolFormat = ToolFormats.TAGGED.value
    thinks: bool = False  # `reasoning_effort` has a meaning, as for RWKV-7 G1

    def __post_init__(self) -> None:
        if "{content}" not in self.record:
            raise InvalidRequestError("template.record", self.record, "a text that contains {content}")

    @property
    def source(self) -> Mapping[str, str]:
        return {"record": self.record, "prefix": self.prefix, "sep": self.sep}

    @property
    def as_jinja(self) -> str:
        """An equivalent Jinja template, for conversations without tools whose messages have plain texts as content."""
        names = {word: self._name(role) for word, role in ROLE_WORDS.items()}
        record = _fill_with_code(self.record, {"role": "names[message['role'] | lower]", "content": "ns.text"})
        return (
            "{%- set names = " + json.dumps(names) + " -%}"
            "{%- for message in messages -%}"
            "{%- set ns = namespace(text='') -%}"
            "{%- for line in message['content'].strip().split('\\n') if line.strip() -%}"
            "{%- set ns.text = ns.text + ('' if loop.first else '\\n') + line -%}"
            "{%- endfor -%}"
            + record
            + _code(self.sep)
            + "{%- endfor -%}{%- if add_generation_prompt -%}"
            + _code(self.ending)
            + "{%- endif -%}"
        )

    def most_characters(self, conversation: Conversation) -> int:
        """Return a bound on the prompt's length in characters, and on the work of rendering it, without rendering."""
        messages = self._with_tools(conversation)
        contents, roles = self.record.count("{content}"), self.record.count("{role}")
        of_messages = len(messages) * len(self.record + self.sep) + sum(
            contents * len(self._content(message)) + roles * len(self._name(message.role)) for message in messages
        )
        of_names = sum(self.prefix.count(f"{{{role.value.lower()}}}") * len(self._name(role)) for role in Role)
        return of_messages + len(self.prefix) + of_names + len(" think a lot <think")

    def render(self, conversation: Conversation, most_characters: int) -> Rendered:
        """Return the prompt for a conversation, with the lengths at which its turns end.

        A longer conversation begins with the same turns. A token ends at the end of each turn: the next turn begins
        with a letter, and hardly any vocabulary joins a letter to the separator.
        """
        bound = self.most_characters(conversation)
        if bound > most_characters:
            raise InvalidRequestError("messages", bound, f"a prompt of at most {most_characters} characters")
        thinking, effort = self._thinking(conversation)
        messages = self._with_tools(conversation)
        turns = [self._record(message) + self.sep for message in messages]
        first = len(conversation.messages) - len(messages) + 1
        turn_ends = dict(enumerate(accumulate(map(len, turns)), start=first))
        if conversation.continues:
            turns[-1] = self._record(messages[-1])
            del turn_ends[len(conversation.messages)]
        elif conversation.answers:
            if effort and messages and messages[-1].role is Role.USER:
                turns[-1] = (
                    self._record(replace(messages[-1], content=messages[-1].content.rstrip() + effort)) + self.sep
                )
                del turn_ends[len(conversation.messages)]
            turns.append(self.ending + (" <think" if thinking else ""))
        # Thoughts may have blank lines.
        stop = f"\n\n{self._name(Role.USER)}:" if thinking else "\n\n"
        return Rendered("".join(turns), turn_ends, stop=(stop,))

    @property
    def ending(self) -> str:
        return _fill(self.prefix, {role.value.lower(): self._name(role) for role in Role})

    def follow(self, text: str) -> str:
        """Return the rest of the separator between turns that `text` does not end with; the end of a text is enough."""
        overlap = next(n for n in range(min(len(self.sep), len(text)), -1, -1) if text.endswith(self.sep[:n]))
        return self.sep[overlap:]

    def _thinking(self, conversation: Conversation) -> tuple[bool, str]:
        """Return True if the answer begins with thoughts, and a note on their length for the last question."""
        wanted, effort = conversation.variables.get("enable_thinking"), conversation.variables.get("reasoning_effort")
        if wanted is None and self.thinks:
            wanted = effort not in (None, "none") if conversation.thinking is None else conversation.thinking
        thinking = wanted is True
        return thinking, _EFFORTS.get(str(effort), "") if thinking else ""

    def _with_tools(self, conversation: Conversation) -> list[ChatMessage]:
        """Return the messages, with a description of the tools in the first system message, added if missing."""
        messages = list(conversation.messages)
        if not conversation.tools:
            return messages
        described = self.tool_format.describe(conversation.tools)
        if conversation.num_leading_system == 0:
            return [ChatMessage(Role.SYSTEM, described), *messages]
        return [replace(messages[0], content=f"{messages[0].content.rstrip()}\n{described}"), *messages[1:]]

    def _record(self, message: ChatMessage) -> str:
        return _fill(self.record, {"role": self._name(message.role), "content": clean(self._content(message))})

    def _content(self, message: ChatMessage) -> str:
        pause()
        if not message.tool_calls:
            return message.content
        return "\n".join(filter(None, (message.content.rstrip(), self.tool_format.write(message.tool_calls))))

    def _name(self, role: Role) -> str:
        return self.names.get(role, role.value)


def clean(content: str) -> str:
    """Return `content` without blank lines and without white space around it."""
    return "\n".join(line for line in content.split("\n") if line.strip()).strip()


def _code(text: str) -> str:
    return "{{- " + json.dumps(text) + " -}}"


def _fill_with_code(text: str, expressions: Mapping[str, str]) -> str:
    """Return Jinja code that writes `text`, with the value of a Jinja expression in place of each of its {names}."""
    parts = re.split(r"\{(\w+)\}", text)
    written = []
    for number, part in enumerate(parts):
        if number % 2 and part in expressions:
            written.append("{{- " + expressions[part] + " -}}")
        elif part:
            written.append(_code("{" + part + "}" if number % 2 else part))
    return "".join(written)


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Replace each of the {names} in `text` by its value, in one pass, so that braces in the values are kept."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)
