"""The template of RWKV World models.

A record is `{role}: {content}`, records are joined by a blank line,
and the prompt ends with the name of the next speaker, `Assistant:`. A blank line inside a message would look
like the end of a record, so runs of blank lines become one line break.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from rnn_engine.chat_template.messages import (
    ROLE_WORDS,
    ChatMessage,
    Conversation,
    Rendered,
    Role,
    ToolFormat,
    ToolFormats,
)
from rnn_engine.errors import InvalidRequestError

_EFFORTS = {"minimal": " think a bit", "low": " think a bit", "high": " think a lot", "xhigh": " think a lot"}


@dataclass(frozen=True, slots=True)
class WorldTemplate:
    """The template of RWKV World models, with the texts around the messages.

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
        """An equivalent Jinja template, for messages with texts as their content and without tools."""
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
        """Return a bound on the length of the prompt, and on the work of rendering it, without rendering it."""
        messages = self._with_tools(conversation)
        contents, roles = self.record.count("{content}"), self.record.count("{role}")
        of_messages = len(messages) * len(self.record + self.sep) + sum(
            contents * len(self._content(message)) + roles * len(self._name(message.role)) for message in messages
        )
        of_names = sum(self.prefix.count(f"{{{role.value.lower()}}}") * len(self._name(role)) for role in Role)
        return of_messages + len(self.prefix) + of_names + len(" think a lot <think")

    def render(self, conversation: Conversation, most_characters: int) -> Rendered:
        """Return the prompt.

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
        """The text between the last turn and the answer."""
        return _fill(self.prefix, {role.value.lower(): self._name(role) for role in Role})

    def follow(self, text: str) -> str:
        """Return the missing part of the separator after a text; the end of the text is enough."""
        overlap = next(n for n in range(min(len(self.sep), len(text)), -1, -1) if text.endswith(self.sep[:n]))
        return self.sep[overlap:]

    def _thinking(self, conversation: Conversation) -> tuple[bool, str]:
        """Return whether the answer begins with thoughts, and the text in the last question about their amount."""
        wanted, effort = conversation.variables.get("enable_thinking"), conversation.variables.get("reasoning_effort")
        thinking = wanted is True or (wanted is None and self.thinks and effort not in (None, "none"))
        return thinking, _EFFORTS.get(str(effort), "") if thinking else ""

    def _with_tools(self, conversation: Conversation) -> list[ChatMessage]:
        """Return the messages with a description of the tools in the first system message.

        Adds a system message if there is none.
        """
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
        """Return the text of a message with its calls. Earlier thoughts are left out."""
        if not message.tool_calls:
            return message.content
        return "\n".join(filter(None, (message.content.rstrip(), self.tool_format.write(message.tool_calls))))

    def _name(self, role: Role) -> str:
        return self.names.get(role, role.value)


def clean(content: str) -> str:
    """Return `content` without blank lines and without white space around it."""
    return "\n".join(line for line in content.split("\n") if line.strip()).strip()


def _code(text: str) -> str:
    """Return a Jinja expression that writes a text."""
    return "{{- " + json.dumps(text) + " -}}"


def _fill_with_code(text: str, expressions: Mapping[str, str]) -> str:
    """Return Jinja code that writes a text with the values of expressions in place of their {names}."""
    parts = re.split(r"\{(\w+)\}", text)
    written = []
    for number, part in enumerate(parts):
        if number % 2 and part in expressions:
            written.append("{{- " + expressions[part] + " -}}")
        elif part:
            written.append(_code("{" + part + "}" if number % 2 else part))
    return "".join(written)


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Replace {names} by their values, in one pass, so that braces in the values are kept."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)
