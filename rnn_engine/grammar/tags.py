"""Grammars of texts in which parts that follow a schema stand between free text, such as tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rnn_engine.grammar.grammar import Grammar
from rnn_engine.grammar.json_schema import with_spacing

_TEXT = r"/(.|\n)*/"


@dataclass(frozen=True, slots=True)
class Tag:
    """A part of a text: `begin`, a JSON text that follows `schema`, `end`."""

    begin: str
    schema: Mapping[str, object] | bool  # True allows any JSON text
    end: str


def tagged_text(
    tags: Sequence[Tag],
    trigger: str,
    *,
    required: bool = False,
    parallel: bool = True,
    separator: str = "\n",
    ending: str = "",
    otherwise: Mapping[str, object] | bool | None = None,
) -> Grammar:
    r"""Return the grammar of texts with parts of `tags` in them.

    The text is free until `trigger`, with which each tag begins; then one of the tags follows to its end, then free
    text again, and so on. Where `required`, there is no free text: the text is one of the tags or, where `parallel`,
    several with `separator` between, and perhaps `ending` after the last. Where not `parallel`, a text has at most one
    tag and ends with it. With a schema `otherwise` there is no free text either: the text is tags, or JSON by the
    schema.

    Tool calls, for instance, are right once they have begun::

        tags = [
            Tag('<tool_call>\n{"name": "add", "arguments": ', schema_of_add, "}\n</tool_call>"),
            Tag('<tool_call>\n{"name": "now", "arguments": ', schema_of_now, "}\n</tool_call>"),
        ]
        request = GenerateRequest(prompt, grammar=tagged_text(tags, "<tool_call>"))

    Raises ValueError where there is no tag, or one does not begin with `trigger`.
    """
    if not tags or not trigger or not all(tag.begin.startswith(trigger) for tag in tags):
        raise ValueError(f"expected tags that begin with the trigger, which is not empty; got {tags!r}, {trigger!r}")
    rules = [f"tag_{number}: {_body(tag, trigger)}" for number, tag in enumerate(tags)]
    any_tag = " | ".join(f"tag_{number}" for number in range(len(tags)))
    if required or otherwise is not None:
        one = f"{_quoted(trigger)} ({any_tag})"
        last = f"{_quoted(ending)}?" if ending else ""
        start = f"{one} ({_quoted(separator)} {one})* {last}" if parallel else one
        if not required:
            start = f"{start} | %json {_spaced(otherwise)}"
    else:
        rules += [f"TEXT: {_TEXT}", "last: TEXT", f"free[lazy]: TEXT {_quoted(trigger)}"]
        start = f"(free ({any_tag}))* last" if parallel else f"free ({any_tag}) | last"
    return Grammar("lark", "\n".join(["%llguidance {}", f"start: {start}", *rules, ""]), "tools")


def _body(tag: Tag, trigger: str) -> str:
    """Return what follows the trigger of a tag."""
    json_text = f"%json {_spaced(tag.schema)}"
    return " ".join(filter(None, (_quoted(tag.begin[len(trigger) :]), json_text, _quoted(tag.end))))


def _spaced(schema: Mapping[str, object] | bool | None) -> str:
    return json.dumps(with_spacing(schema or {}), ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
