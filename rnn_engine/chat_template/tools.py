"""The tools that a model may call, and the formats in which models read descriptions of tools and write calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rnn_engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask its client to call."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})  # a schema
    strict: bool = False  # whether a schema keyword that can't be enforced on calls is an error


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model made in a message: the tool's name, and the arguments as JSON."""

    name: str
    arguments: str  # JSON
    id: str = ""

    @property
    def parsed_arguments(self) -> object:
        """The arguments parsed from JSON, or their text. Raises InvalidRequestError if they are nested too deeply."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments
        except RecursionError as error:
            raise self.too_deep() from error

    @property
    def named_arguments(self) -> Mapping[str, object]:
        """The arguments by name; what is no JSON object is one argument. Raises as `parsed_arguments` does."""
        match self.parsed_arguments:
            case dict(arguments):
                return arguments
            case None | []:
                return {}
        return {"arguments": self.arguments} if self.arguments.strip() else {}

    def too_deep(self) -> InvalidRequestError:
        """Return the error for arguments that are nested too deeply to be read or written."""
        return InvalidRequestError(
            f"arguments of the call of {self.name}", self.arguments, "JSON with fewer nested levels"
        )


def tool_json(tool: Tool) -> str:
    """Return the description of a tool in the form of OpenAI's API, as one line of JSON."""
    return to_json(tool_object(tool))


def tool_object(tool: Tool) -> dict[str, object]:
    """Return the description of a tool in the form of OpenAI's API, as a dict."""
    described = {"name": tool.name, "description": tool.description, "parameters": _well_formed(tool.parameters)}
    return {"type": "function", "function": described}


def _well_formed(parameters: Mapping[str, object]) -> Mapping[str, object]:
    """Return a schema of arguments in which a template can walk over the properties and the required names."""
    fixed = dict(parameters)
    if "properties" in fixed:
        found = fixed["properties"] if isinstance(fixed["properties"], Mapping) else {}
        fixed["properties"] = {name: each if isinstance(each, Mapping) else {} for name, each in found.items()}
    if not isinstance(fixed.get("required", []), list):
        fixed["required"] = []
    return fixed


def to_json(value: object) -> str:
    """Return `value` as JSON in the style that models are trained on: one line, ", " and ": ", no character escapes."""
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
    """How a model writes a tool call: a JSON object of a name and arguments, between an opening and a closing text."""

    opening: str = ""  # without white space around it; empty if the object stands by itself
    closing: str = ""
    arguments: str = "arguments"  # the key of the arguments
    signatures: bool = False  # tools are listed as `weather(city)`, without instructions for calling them

    def describe(self, tools: Sequence[Tool]) -> str:
        """Return the text that describes `tools` to the model, for a system message."""
        if self.signatures:
            properties = [tool.parameters.get("properties") for tool in tools]
            names = [", ".join(each) if isinstance(each, dict) else "" for each in properties]
            return "Tools: " + ", ".join(f"{tool.name}({own})" for tool, own in zip(tools, names, strict=True))
        text = _INSTRUCTIONS if self.opening else _BARE_INSTRUCTIONS
        lines = "\n".join(map(tool_json, tools))
        return text.format(tools=lines, opening=self.opening, closing=self.closing, arguments=self.arguments)

    def write(self, calls: Iterable[ToolCall]) -> str:
        """Return tool calls as text, in the way that the model writes them."""
        return "\n".join(map(self._write_call, calls))

    def _write_call(self, call: ToolCall) -> str:
        try:
            written = to_json({"name": call.name, self.arguments: call.parsed_arguments})
        except RecursionError as error:
            raise call.too_deep() from error
        return f"{self.opening}\n{written}\n{self.closing}" if self.opening else written


class ToolFormats(Enum):
    """The known formats in which models write tool calls."""

    TAGGED = ToolFormat("<tool_call>", "</tool_call>")
    JSON = ToolFormat()
    JSON_PARAMETERS = ToolFormat(arguments="parameters")
    SIGNATURES = ToolFormat(signatures=True)


def guess_format(template: str) -> ToolFormat:
    """Return the format of tool calls that a Jinja chat template seems to use, judged by words in it."""
    if "<tool_call>" in template or "tools" not in template:
        return ToolFormats.TAGGED.value
    return ToolFormats.JSON_PARAMETERS.value if '"parameters":' in template else ToolFormats.JSON.value
