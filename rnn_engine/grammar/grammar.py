"""Grammars as clients send them: a JSON schema, a regular expression, a choice or a formal grammar."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from llguidance.gbnf_to_lark import is_lark_syntax

from rnn_engine.errors import InvalidGrammarError, InvalidRequestError
from rnn_engine.grammar.position import error_position

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
