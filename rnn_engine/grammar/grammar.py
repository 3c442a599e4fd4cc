"""What a text may be, as a client says it: a JSON schema, a regular expression, a grammar."""

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
    """A grammar is wrong, or takes more than is allowed; the message says where and what."""


class SlowGrammarError(GrammarError):
    """A grammar takes more time than is allowed."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """All texts that an answer may be. Equal ones are compiled once.

    | kind | text |
    |---|---|
    | json_schema | a JSON schema |
    | json_object | nothing: any JSON object |
    | regex | a regular expression in the syntax of Rust's `regex`, which the whole text matches |
    | choice | a JSON list of strings, one of which is the text |
    | lark | a grammar in llguidance's variant of Lark, with the rule `start` |
    | gbnf | a grammar of llama.cpp, with the rule `root` |
    | kbnf | a grammar of kbnf, which ai00 takes, with the rule `start` |
    """

    kind: GrammarKind
    text: str = ""
    field: str = dataclasses.field(default="grammar", compare=False)  # of the client's request, for error messages
    is_written: bool = dataclasses.field(default=True, compare=False)  # the client sent `text` itself

    def refused(self, reason: str) -> InvalidGrammarError:
        """Return the error for a grammar that can't be used, with its place in a text that the client sent."""
        position = error_position(self.kind, self.text, reason) if self.is_written else None
        return InvalidGrammarError(
            self.field, self.text or self.kind, f"a {self.kind} that can be used: {reason}", position
        )


def json_grammar(schema: Mapping[str, object] | bool, name: str = "json_schema", *, strict: bool = True) -> Grammar:
    """Return the grammar of the JSON texts that `schema` allows; `name` is the field of the request that has it.

    Where not `strict`, keywords that no grammar can hold a text to are ignored instead of refused.
    """
    if not strict and isinstance(schema, Mapping):
        schema = {**schema, "x-guidance": {"lenient": True}}
    try:
        return Grammar("json_schema", json.dumps(schema, ensure_ascii=False), name, is_written=False)
    except RecursionError:
        raise InvalidRequestError(name, "a JSON schema", "less deeply nested objects and lists") from None


def choice_grammar(choices: Sequence[str], name: str = "choice") -> Grammar:
    """Return the grammar of the texts in `choices`; `name` is the field of the request that has them."""
    return Grammar("choice", json.dumps(list(choices), ensure_ascii=False), name, is_written=False)


def written_grammar(text: str, name: str = "grammar") -> Grammar:
    """Return the grammar in `text`, llama.cpp's or Lark's; `name` is the field of the request that has it."""
    return Grammar("lark" if is_lark_syntax(text) else "gbnf", text, name)
