"""A conversation, the tools that a model may call in it, and the protocol of templates that turn it into one text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from rnn_engine.errors import InvalidRequestError


class Role(Enum):
    """The speaker of a message; the value is the name that World models read."""

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
    """Return the role for a client's word, in upper or lower case; None for an unknown word."""
    return ROLE_WORDS.get(word.lower())


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask its client to call."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})  # a schema
    strict: bool = False  # whether a schema keyword that can't be enforced on calls is an error


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made."""

    name: str
    arguments: str  # JSON
    id: str = ""

    @property
    def parsed_arguments(self) -> object:
        """The arguments as a value, or their text if it is no JSON.

        Raises InvalidRequestError if they are nested too deeply.
        """
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments
        except RecursionError as error:
            raise self.too_deep() from error

    def too_deep(self) -> InvalidRequestError:
        """Return the error for arguments that are nested too deeply to be read or written."""
        return InvalidRequestError(
            f"arguments of the call of {self.name}", self.arguments, "JSON with fewer nested levels"
        )


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of the assistant
    tool_call_id: str | None = None  # of the call that the message answers
    name: str | None = None  # of the tool that it comes from
    reasoning: str | None = None  # the assistant's thoughts before its content


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a chat template."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool] = ()
    continues: bool = False  # the answer continues the last message, the assistant's
    answers: bool = True  # the prompt ends at the beginning of an answer; ignored if it `continues`
    variables: Mapping[str, object] = field(default_factory=dict)  # for templates, such as enable_thinking

    @property
    def num_leading_system(self) -> int:
        """The number of system messages before all others."""
        roles = [message.role for message in self.messages]
        return next((count for count, role in enumerate(roles) if role is not Role.SYSTEM), len(roles))

    @property
    def characters(self) -> int:
        """The approximate number of characters of all messages and tools."""
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
    """Return `value` as the kind of JSON that models are trained on: one line, ", " and ": ", no character escapes."""
    return json.dumps(value, ensure_ascii=False)


_INSTRUCTIONS = """\
You may call one or more functions to assist with the user query.
You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>
For each function call, return a JSON object with function name and arguments within {opening}{closing} tags:
{opening}
{{"name": <function-name>, "{arguments}": <arguments as JSON object>}}
{closing}"""
_BARE_INSTRUCTIONS = """\
You may call a function to assist with the user query. These are the functions:
{tools}
To call one, answer with a JSON object and nothing else:
{{"name": <function-name>, "{arguments}": <arguments as JSON object>}}"""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a call is written: a JSON object of a name and arguments, between an opening and a closing text."""

    opening: str = ""  # without white space around it; empty if the object stands by itself
    closing: str = ""
    arguments: str = "arguments"  # the key of the arguments
    signatures: bool = False  # tools are listed as `weather(city)`, without instructions for calling them

    def describe(self, tools: Sequence[Tool]) -> str:
        """Return the description of `tools` for a system message."""
        if self.signatures:
            return "Tools: " + ", ".join(map(_signature, tools))
        text = _INSTRUCTIONS if self.opening else _BARE_INSTRUCTIONS
        lines = "\n".join(map(tool_json, tools))
        return text.format(tools=lines, opening=self.opening, closing=self.closing, arguments=self.arguments)

    def write(self, calls: Iterable[ToolCall]) -> str:
        """Return calls as the model writes them."""
        return "\n".join(map(self._write_call, calls))

    def _write_call(self, call: ToolCall) -> str:
        try:
            written = to_json({"name": call.name, self.arguments: call.parsed_arguments})
        except RecursionError as error:
            raise call.too_deep() from error
        return f"{self.opening}\n{written}\n{self.closing}" if self.opening else written


class ToolFormats(Enum):
    """The known formats."""

    TAGGED = ToolFormat("<tool_call>", "</tool_call>")
    JSON = ToolFormat()
    JSON_PARAMETERS = ToolFormat(arguments="parameters")
    SIGNATURES = ToolFormat(signatures=True)


def guess_format(template: str) -> ToolFormat:
    """Return the format that a Jinja template seems to use."""
    if "<tool_call>" in template or "tools" not in template:
        return ToolFormats.TAGGED.value
    return ToolFormats.JSON_PARAMETERS.value if '"parameters":' in template else ToolFormats.JSON.value


def _signature(tool: Tool) -> str:
    properties = tool.parameters.get("properties")
    return f"{tool.name}({', '.join(properties) if isinstance(properties, dict) else ''})"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as one text."""

    text: str
    turn_ends: Mapping[int, int] = field(default_factory=dict)
    """Number of messages -> number of characters at the beginning of `text` that these messages make up.

    A number of messages is left out if a longer conversation does not begin with the same text. The entry for 0 is the
    length of the text that describes the tools."""
    stop: tuple[str, ...] = ()  # texts before which an answer ends, unless its request says otherwise
    stop_tokens: tuple[str, ...] = ()  # special tokens that end it, besides the end of text


class ChatTemplate(Protocol):
    """Turns conversations into texts that a model continues. Safe to use from several threads."""

    @property
    def source(self) -> Mapping[str, str] | str:
        """The source that clients may read: the texts around the messages, or the template's own text."""
        ...

    @property
    def tool_format(self) -> ToolFormat: ...

    def most_characters(self, conversation: Conversation) -> int:
        """Return the approximate work of rendering, without rendering.

        It also bounds the length of the prompt, if a bound is known beforehand.
        """
        ...

    def render(self, conversation: Conversation, most_characters: int) -> Rendered:
        """Return the prompt.

        Raises InvalidRequestError if the template refuses the conversation, takes too long, or makes more than
        `most_characters`.
        """
        ...

    def follow(self, text: str) -> str:
        """Return the text between a text that the model has taken in and a chat; the end of the former is enough."""
        ...
