"""Grammars as clients send them: a JSON schema, a regular expression, a choice or a formal grammar."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from llguidance.gbnf_to_lark import is_lark_syntax

from rnn_engine.errors import InvalidGrammarError, InvalidRequestError

# Where an error is in a grammar's text, from the messages of the libraries.


_LINE_COLUMN: Final = re.compile(r"^(?:at )?(\d+)\((\d+)\)|\bline (\d+),? column (\d+)")
_GBNF_CONTEXT: Final = re.compile(
    r"at line (\d+), ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\") \^ ('.*'|\".*\")$", re.DOTALL
)
_MISSING_RULE: Final = re.compile(r"Rule '([^']+)' not found|the nonterminal `([^`]+)` is not defined")
_REGEX_CARET: Final = re.compile(r"regex parse error:\n    (.*)\n    ( *)\^")
_POINTER: Final = re.compile(r"\(at #(.*)\)$", re.DOTALL)
_LITERALS: Final = {
    "gbnf": re.compile(r'#[^\n]*|"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]'),
    "kbnf": re.compile(r"""\(\*.*?\*\)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""", re.DOTALL),
}


class TextPosition(NamedTuple):
    """A position in a text, as line and column. The column counts characters."""

    line: int  # from 1
    column: int  # from 1


def error_position(kind: str, text: str, message: str) -> TextPosition | None:
    """Return the position in the grammar `text` of the error that a grammar library reported as `message`, or None.

    It is None if the message does not give it. `kind` is the grammar's kind.
    """
    match kind:
        case "regex":
            return _in_regex(text, message)
        case "json_schema":
            return _in_json(text, message)
        case "gbnf":
            return _in_gbnf(text, message) or _missing_rule(kind, text, message)
        case "kbnf":
            return _told(text, message) or _missing_rule(kind, text, message)
        case "lark":
            return _told(text, message, in_bytes=True)
    return None


def _told(text: str, message: str, *, in_bytes: bool = False) -> TextPosition | None:
    """Return the line and column in `message`, in characters, or bytes if `in_bytes`; None if it has none."""
    if (found := _LINE_COLUMN.search(message)) is None:
        return None
    line, column = (int(number) for number in found.groups() if number is not None)
    lines = text.split("\n")
    if not 0 < line <= len(lines):
        return _at(text, len(text))
    if in_bytes:
        column = len(lines[line - 1].encode(errors="replace")[: max(column - 1, 0)].decode(errors="ignore")) + 1
    return TextPosition(line, max(1, min(column, len(lines[line - 1]) + 1)))


def _in_regex(text: str, message: str) -> TextPosition | None:
    """Return the position of an error in a regular expression, which `message` marks with a caret below the expression.

    It is None if there is no caret. The message shows line breaks and slashes escaped.
    """
    if (found := _REGEX_CARET.search(message)) is None:
        return None
    shown, column = found[1], len(found[2])
    place = index = 0
    while index < column and place < len(text):
        if text[place] == "\\" and shown[index : index + 2] == text[place : place + 2]:
            place, index = place + 2, index + 2
            continue
        index += 1 if shown[index : index + 1] == text[place] else 2
        place += 1
    return _at(text, min(place, len(text)))


def _in_json(text: str, message: str) -> TextPosition | None:
    if (found := _POINTER.search(message)) is None:
        return _told(text, message)
    keys = [key.replace("~1", "/").replace("~0", "~") for key in found[1].split("/")[1:]]
    offset = json_offset(text, keys)
    return None if offset is None else _at(text, offset)


def json_offset(text: str, keys: list[str]) -> int | None:
    """Return the offset of the value at the path `keys`, indices as texts, in JSON; None if there is none."""
    try:
        offset = _space(text, 0)
        for key in keys:
            offset = _member(text, offset, key)
    except (ValueError, IndexError, KeyError, RecursionError):
        return None
    return offset


def _member(text: str, offset: int, wanted: str) -> int:
    """Return the offset of a member, a key or an index as text, of the JSON at `offset`. Raises KeyError for none."""
    decoder, is_object, number = json.JSONDecoder(), text[offset] == "{", 0
    offset = _space(text, offset + 1)
    while text[offset] not in "]}":
        key = str(number)
        if is_object:
            key, offset = decoder.raw_decode(text, offset)
            offset = _space(text, _space(text, offset) + 1)
        if key == wanted:
            return offset
        _, offset = decoder.raw_decode(text, offset)
        offset = _space(text, offset)
        if text[offset] == ",":
            offset = _space(text, offset + 1)
        number += 1
    raise KeyError(wanted)


def _space(text: str, offset: int) -> int:
    while text[offset] in " \t\r\n":
        offset += 1
    return offset


def _in_gbnf(text: str, message: str) -> TextPosition | None:
    """Return the position of an error for which `message` gives the line and the text before and after it, or None."""
    if (found := _GBNF_CONTEXT.search(message)) is None:
        return None
    line, before, after = int(found[1]), ast.literal_eval(found[2]), ast.literal_eval(found[3])
    places = [match.start() + len(before) for match in re.finditer(f"(?={re.escape(before + after)})", text)]
    return next((at for place in places if (at := _at(text, place)).line == line), None)


def _missing_rule(kind: str, text: str, message: str) -> TextPosition | None:
    """Return the position of the first use of a rule that `message` reports as undefined; None if it reports none."""
    if (found := _MISSING_RULE.search(message)) is None:
        return None
    bare = _LITERALS[kind].sub(lambda literal: re.sub(r"[^\n]", " ", literal[0]), text)
    name = re.escape(found[1] or found[2])
    place = re.search(rf"(?<![\w-]){name}(?![\w-])", bare)
    return None if place is None else _at(text, place.start())


def _at(text: str, offset: int) -> TextPosition:
    return TextPosition(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


GrammarKind: TypeAlias = Literal[
    "json_schema", "json_object", "regex", "choice", "tagged", "lark", "gbnf", "kbnf", "tokens"
]


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of a JSON schema that can't be enforced: its place, its value, and the reason."""

    place: str  # a JSON pointer such as `#/properties/a/pattern`
    value: object
    reason: str


class GrammarError(Exception):
    """A grammar is invalid or takes too much. `fault` is the part of a JSON schema that is at fault, if known."""

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault

    def below(self, name: str) -> GrammarError:
        """Return this error for the schema called `name`."""
        if self.fault is None:
            return GrammarError(f"{name}: {self}")
        fault = dataclasses.replace(self.fault, place=f"{name}{self.fault.place}")
        return GrammarError(f"{fault.reason} (at {fault.place})", fault)


class SlowGrammarError(GrammarError):
    """A grammar takes more time to compile than allowed."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an answer must follow, not yet compiled. Equal grammars are compiled once.

    | kind | `text` |
    |---|---|
    | json_schema | a JSON schema |
    | json_object | nothing: any JSON object |
    | regex | a regular expression for the whole answer, in the syntax of Rust's `regex` |
    | choice | a JSON list of strings; the answer is one of them |
    | tagged | what `tagged_text` makes |
    | lark | a grammar in llguidance's variant of Lark, with the rule `start` |
    | gbnf | a grammar of llama.cpp, with the rule `root` |
    | kbnf | a grammar of kbnf, as ai00 takes them, with the rule `start` |
    | tokens | a JSON list of token ids; the answer has only these |
    """

    kind: GrammarKind
    text: str = ""
    field: str = dataclasses.field(default="grammar", compare=False)  # of the client's request, for error messages
    is_written: bool = dataclasses.field(default=True, compare=False)  # the client sent `text` itself
    strict: bool = True  # otherwise what can't be enforced is left out of a JSON schema

    def refused(self, reason: str, fault: Fault | None = None) -> InvalidGrammarError:
        """Return the error for this grammar, with the position of the fault if the client wrote the text."""
        position = error_position(self.kind, self.text, reason) if self.is_written else None
        if fault is not None:
            field = fault.place.partition("#")[0] or self.field
            return InvalidGrammarError(field, fault.value, f"a JSON schema that can be enforced: {reason}", position)
        kind, value = self.kind, self.text or self.kind
        if kind == "tagged":
            kind, value = "json_schema", "the tools' schemas"
        return InvalidGrammarError(self.field, value, f"a {kind} that can be used: {reason}", position)


def json_grammar(schema: Mapping[str, object] | bool, name: str = "json_schema", *, strict: bool = True) -> Grammar:
    """Return the grammar of JSON that fits `schema`, the field `name`. Unless `strict`, keywords may be ignored."""
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequestError(name, "a JSON schema", "less deeply nested objects and lists") from None
    return Grammar("json_schema", text, name, is_written=False, strict=strict)


def choice_grammar(choices: Sequence[str], name: str = "choice") -> Grammar:
    """Return the grammar that allows just the texts in `choices`. `name` is the request's field that contains them."""
    return Grammar("choice", json.dumps(list(choices), ensure_ascii=False), name, is_written=False)


def written_grammar(text: str, name: str = "grammar") -> Grammar:
    """Return the grammar in `text`, of the field `name`: in llama.cpp's syntax or in Lark's, as it seems."""
    return Grammar("lark" if is_lark_syntax(text) else "gbnf", text, name)
