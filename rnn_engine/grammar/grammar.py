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

GrammarKind: TypeAlias = Literal["json_schema", "json_object", "regex", "choice", "lark", "gbnf", "kbnf"]


class GrammarError(Exception):
    """A grammar is invalid, or takes more time or memory than allowed. The message gives the reason."""


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
    | lark | a grammar in llguidance's variant of Lark, with the rule `start` |
    | gbnf | a grammar of llama.cpp, with the rule `root` |
    | kbnf | a grammar of kbnf, as ai00 takes them, with the rule `start` |
    """

    kind: GrammarKind
    text: str = ""
    field: str = dataclasses.field(default="grammar", compare=False)  # of the client's request, for error messages
    is_written: bool = dataclasses.field(default=True, compare=False)  # the client sent `text` itself

    def refused(self, reason: str) -> InvalidGrammarError:
        """Return the error that reports this grammar as unusable because of `reason`.

        If the client wrote the text, the error has the position of the fault.
        """
        position = error_position(self.kind, self.text, reason) if self.is_written else None
        return InvalidGrammarError(
            self.field, self.text or self.kind, f"a {self.kind} that can be used: {reason}", position
        )


def json_grammar(schema: Mapping[str, object] | bool, name: str = "json_schema", *, strict: bool = True) -> Grammar:
    """Return the grammar of all JSON texts that fit `schema`. `name` is the request's field that contains the schema.

    Keywords that a grammar can't enforce are refused, or ignored if `strict` is False.
    """
    if not strict and isinstance(schema, Mapping):
        schema = {**schema, "x-guidance": {"lenient": True}}
    try:
        return Grammar("json_schema", json.dumps(schema, ensure_ascii=False), name, is_written=False)
    except RecursionError:
        raise InvalidRequestError(name, "a JSON schema", "less deeply nested objects and lists") from None


def choice_grammar(choices: Sequence[str], name: str = "choice") -> Grammar:
    """Return the grammar that allows just the texts in `choices`. `name` is the request's field that contains them."""
    return Grammar("choice", json.dumps(list(choices), ensure_ascii=False), name, is_written=False)


def written_grammar(text: str, name: str = "grammar") -> Grammar:
    """Return the grammar written in `text`, after detecting if it is in llama.cpp's syntax or in Lark's.

    `name` is the request's field that contains the text.
    """
    return Grammar("lark" if is_lark_syntax(text) else "gbnf", text, name)
