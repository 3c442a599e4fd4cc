"""What an answer may be where tools may be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rnn_engine.chat_template import Tool
from rnn_engine.chat_template.messages import to_json
from rnn_engine.chat_template.tools import ToolFormat
from rnn_engine.grammar import Grammar, Tag, tagged_text

ToolMode: TypeAlias = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools may, must or must not be called, and which; None is all."""

    mode: ToolMode
    names: tuple[str, ...] | None = None

    def callable_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Return those of `tools` that may be called."""
        if self.mode == "none":
            return ()
        return [tool for tool in tools if self.names is None or tool.name in self.names]


def tool_grammar(
    format_: ToolFormat,
    tools: Sequence[Tool],
    *,
    required: bool,
    parallel: bool,
    lead: str = "",
    ending: str = "",
    otherwise: Mapping[str, object] | bool | None = None,
) -> Grammar:
    """Return the grammar of answers that may call `tools`, or have to where `required`.

    Calls follow their schemas from the moment that they begin. A format without a closing text has one call an answer.
    Where a call is required, the answer begins with `lead` and may end with `ending`. An answer without calls follows
    the schema `otherwise`, where one is given.
    """
    before = f"{format_.opening}\n" if format_.opening else ""
    after = f"\n{format_.closing}" if format_.closing else ""
    from_start = required or otherwise is not None
    lead = lead if from_start else ""
    begins = [f'{lead}{before}{{"name": {to_json(tool.name)}, "{format_.arguments}": ' for tool in tools]
    tags = [Tag(begin, _schema(tool), f"}}{after}") for begin, tool in zip(begins, tools, strict=True)]
    trigger = _common_beginning(begins) if from_start or not format_.opening else format_.opening
    several = parallel and bool(format_.closing)
    return tagged_text(tags, trigger, required=required, parallel=several, ending=ending, otherwise=otherwise)


def _common_beginning(texts: Sequence[str]) -> str:
    """Return what all of `texts` begin with."""
    first, last = min(texts), max(texts)
    length = 0
    while length < len(first) and first[length] == last[length : length + 1]:
        length += 1
    return first[:length]


def _schema(tool: Tool) -> Mapping[str, object]:
    return tool.parameters if tool.strict else {**tool.parameters, "x-guidance": {"lenient": True}}
