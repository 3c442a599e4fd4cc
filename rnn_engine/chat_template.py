"""Turn the messages of a conversation into the text that a model continues.

A record is `{role}: {content}`, records are joined by a blank line,
and the prompt ends with the name of the one who speaks next, `Assistant:`. A blank line inside a message would look
like the end of a record, so runs of blank lines become one line break.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from rnn_engine.errors import InvalidRequestError


class Role(Enum):
    """Who speaks; the value is the name that the model reads."""

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
    }
)


def find_role(word: str) -> Role | None:
    """Return the role that a client's word means, in any case of letters."""
    return ROLE_WORDS.get(word.lower())


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The texts around the messages.

    `record` may hold {role} and {content}; `prefix` may hold {assistant}, {user}, {system} and {observation}, which
    stand for the names of the roles.
    """

    record: str = "{role}: {content}"
    prefix: str = "{assistant}:"
    sep: str = "\n\n"
    names: Mapping[Role, str] = field(default_factory=dict)  # a role that is absent has its own name

    def __post_init__(self) -> None:
        if "{content}" not in self.record:
            raise InvalidRequestError("template.record", self.record, "a text with {content} in it")

    def most_characters(self, messages: Sequence[ChatMessage]) -> int:
        """Return a bound on the length of the prompt, and on the work of rendering it; builds nothing."""
        contents, roles = self.record.count("{content}"), self.record.count("{role}")
        of_messages = len(messages) * len(self.record + self.sep) + sum(
            contents * len(message.content) + roles * len(self._name(message.role)) for message in messages
        )
        of_names = sum(self.prefix.count(f"{{{role.value.lower()}}}") * len(self._name(role)) for role in Role)
        return of_messages + len(self.prefix) + of_names

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """Return the prompt, after which the assistant speaks."""
        return "".join(self.turns(messages)) + self.ending

    def turns(self, messages: Sequence[ChatMessage]) -> list[str]:
        """Return the messages' records, each with the separator after it.

        A longer conversation begins with the same turns. A token ends where a turn does: the next one begins with a
        letter, and hardly any vocabulary joins that to the separator.
        """
        return [self._record(message) + self.sep for message in messages]

    @property
    def ending(self) -> str:
        """What stands between the last turn and the answer."""
        return _fill(self.prefix, {role.value.lower(): self._name(role) for role in Role})

    def follow(self, text: str) -> str:
        """Return what is missing of the separator after a text, of which the end is enough."""
        overlap = next(n for n in range(min(len(self.sep), len(text)), -1, -1) if text.endswith(self.sep[:n]))
        return self.sep[overlap:]

    def _record(self, message: ChatMessage) -> str:
        return _fill(self.record, {"role": self._name(message.role), "content": clean(message.content)})

    def _name(self, role: Role) -> str:
        return self.names.get(role, role.value)


def clean(content: str) -> str:
    """Return `content` without blank lines and without white space around it."""
    return re.sub(r"\n\s*\n", "\n", content).strip()


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Put the values in place of their {names}, in one pass, so that a value's own braces stay as they are."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)
