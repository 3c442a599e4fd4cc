"""The messages of a conversation, and the tools that a model may call in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from rnn_engine.errors import InvalidRequestError


class Role(Enum):
    """Who speaks; the value is the name that World models read."""

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
    """Return the role that a client's word means, in any case of letters."""
    return ROLE_WORDS.get(word.lower())


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask its client to call."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})  # a schema
    strict: bool = False  # whether a keyword of the schema that calls can't be held to is an error


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made."""

    name: str
    arguments: str  # JSON
    id: str = ""

    @property
    def parsed_arguments(self) -> object:
        """The arguments as a value; the text itself where it is no JSON.

        Raises InvalidRequestError where it is nested too deeply.
        """
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments
        except RecursionError as error:
            raise self.too_deep() from error

    def too_deep(self) -> InvalidRequestError:
        """Return the error for arguments that can't be read or written, since they are nested too deeply."""
        return InvalidRequestError(f"arguments of the call of {self.name}", self.arguments, "JSON of fewer levels")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of the assistant
    tool_call_id: str | None = None  # of the call that the message answers
    name: str | None = None  # of the tool that it comes from
    reasoning: str | None = None  # what the assistant thought before its content


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template makes a prompt of."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool] = ()
    continues: bool = False  # the last message, the assistant's, is to be gone on with
    answers: bool = True  # the prompt ends where an answer begins; not looked at where the last message is continued
    variables: Mapping[str, object] = field(default_factory=dict)  # for templates that know them, as enable_thinking

    @property
    def num_leading_system(self) -> int:
        """How many system messages come before all others."""
        roles = [message.role for message in self.messages]
        return next((count for count, role in enumerate(roles) if role is not Role.SYSTEM), len(roles))

    @property
    def characters(self) -> int:
        """About how many characters all messages and tools have."""
        of_messages = sum(len(message.content) + len(message.reasoning or "") for message in self.messages)
        of_messages += sum(len(call.name + call.arguments) for each in self.messages for call in each.tool_calls)
        return of_messages + sum(len(tool_json(tool)) for tool in self.tools)


def tool_json(tool: Tool) -> str:
    """Return a tool as OpenAI's API describes it, in one line."""
    return to_json(tool_object(tool))


def tool_object(tool: Tool) -> dict[str, object]:
    """Return a tool as OpenAI's API describes it."""
    described = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": described}


def to_json(value: object) -> str:
    """Return `value` as JSON in the way that models are trained on: one line, ", " and ": ", all characters as such."""
    return json.dumps(value, ensure_ascii=False)
