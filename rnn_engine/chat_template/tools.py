"""How tools are told to a model, and how it writes a call of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from rnn_engine.chat_template.messages import Tool, ToolCall, to_json, tool_json

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
    """A call is a JSON object of a name and arguments, between an opening and a closing text."""

    opening: str = ""  # without white space around it; nothing where the object stands by itself
    closing: str = ""
    arguments: str = "arguments"  # what the arguments are called
    signatures: bool = False  # tools are told as `weather(city)`, without a word on how to call them

    def describe(self, tools: Sequence[Tool]) -> str:
        """Return what a system text says of `tools`."""
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
    """The formats that there are."""

    TAGGED = ToolFormat("<tool_call>", "</tool_call>")
    JSON = ToolFormat()
    JSON_PARAMETERS = ToolFormat(arguments="parameters")
    SIGNATURES = ToolFormat(signatures=True)


def guess_format(template: str) -> ToolFormat:
    """Return the format that a Jinja template seems to mean."""
    if "<tool_call>" in template or "tools" not in template:
        return ToolFormats.TAGGED.value
    return ToolFormats.JSON_PARAMETERS.value if '"parameters":' in template else ToolFormats.JSON.value


def _signature(tool: Tool) -> str:
    properties = tool.parameters.get("properties")
    return f"{tool.name}({', '.join(properties) if isinstance(properties, dict) else ''})"
