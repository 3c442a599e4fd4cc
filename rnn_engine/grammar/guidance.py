"""Grammars that the library llguidance runs, that is all kinds except kbnf, and token masks made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, StepError
from rnn_engine.grammar.grammar import Grammar, GrammarError
from rnn_engine.grammar.schemas import (
    LIMITS,
    fit_schema,
    json_source,
    load_schema,
    parse_number,
    plain_reason,
    with_options,
)
from rnn_engine.grammar.vocabulary import Vocabulary
from rnn_engine.types import mask_words


class GuidanceMask:
    """A `rnn_engine.sampling.masks.TokenMask` of one text, for a grammar that the library llguidance runs."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        """Take ownership of `matcher`, llguidance's state of one text: the caller must not use it any more."""
        self._matcher = matcher
        self._mask = np.empty(mask_words(vocab_size), np.uint32)
        self._place = self._mask.ctypes.data, self._mask.nbytes  # kept, since reading it takes as long as a mask

    @property
    def ended(self) -> bool:
        return self._matcher.is_stopped()

    def forced(self) -> Sequence[int]:
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def next(self) -> NDArray[np.uint32]:
        self._matcher.unsafe_compute_mask_ptr(*self._place)
        self._check()
        return self._mask

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._check()

    def copy(self) -> GuidanceMask:
        return GuidanceMask(self._matcher.deep_copy(), 32 * len(self._mask))

    def _check(self) -> None:
        if self._matcher.is_error():
            error = self._matcher.get_error().removesuffix("<non-verbose/>").strip()
            raise StepError(f"the grammar can't be followed further: {error}")


class GuidanceGrammar:
    """A grammar compiled by the library llguidance. May be used on several threads."""

    left_out: Sequence[str] = ()  # the parts of its schemas that it does not enforce

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        """Compile `grammar`, which is strict, for `vocabulary`. Other threads can run. Raises GrammarError."""
        self._size = vocabulary.size
        source = _source(grammar)
        self._matcher = LLMatcher(vocabulary.for_guidance, source, log_level=0, limits=LIMITS)
        if error := self._matcher.get_error():
            if grammar.kind == "json_schema":
                fit_schema(load_schema(grammar.text), strict=True)  # raises the error with its place
            raise GrammarError(plain_reason(error) if grammar.kind == "json_schema" else error)

    def start(self) -> GuidanceMask:
        """Return the token mask of a new text that follows the grammar, before its first token."""
        return GuidanceMask(self._matcher.deep_copy(), self._size)


def _source(grammar: Grammar) -> str:
    """Return `grammar` as source text in the form that the library llguidance compiles."""
    match grammar.kind:
        case "json_schema":
            return json_source(load_schema(grammar.text))
        case "json_object":
            return json_source({"type": "object"})
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in _load_choices(grammar.text))
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case "gbnf":
            return LLMatcher.grammar_from_lark(_translate(grammar.text))
        case _:
            return LLMatcher.grammar_from_lark(grammar.text)


def fit_grammar(grammar: Grammar) -> tuple[Grammar, tuple[str, ...]]:
    """Return a grammar as a strict one, and the names of the parts of its schemas that were left out for that.

    Raises GrammarError for a part of a strict schema that can't be enforced.
    """
    if grammar.kind == "tagged":
        return _fit_tagged(grammar)
    if grammar.kind != "json_schema" or grammar.strict:
        return grammar, ()
    fitted = fit_schema(load_schema(grammar.text, strict=False), strict=False)
    names = tuple(f"{grammar.field}{fault.place}" for fault in fitted.left_out)
    return replace(grammar, text=json.dumps(with_options(fitted.schema, strict=False)), strict=True), names


def _load_choices(text: str) -> list[str]:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is not valid JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("expected a list of strings that is not empty")
    return choices


def _translate(text: str) -> str:
    """Translate a grammar in llama.cpp's syntax to Lark. Raises GrammarError if it is invalid."""
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise GrammarError("it is too deeply nested") from None
    except Exception as error:  # the library raises plain exceptions
        raise GrammarError(str(error)) from error


_TEXT = r"/(.|\n)*/"


@dataclass(frozen=True, slots=True)
class Tag:
    """A tagged part of a text, such as a tool call: `begin`, then JSON that follows `schema`, then `end`."""

    begin: str
    schema: object  # a JSON schema; True allows any JSON text
    end: str
    name: str = ""  # of the schema, for errors
    strict: bool = True  # otherwise what can't be enforced is left out of the schema
    is_object: bool = False  # the JSON is an object, whatever a schema says that is not strict


def tagged_text(
    tags: Sequence[Tag],
    trigger: str,
    *,
    required: bool = False,
    parallel: bool = True,
    ending: str = "",
    otherwise: Tag | None = None,
) -> Grammar:
    r"""Return the grammar of texts that contain tagged parts, such as tool calls; `tags` lists the possible ones.

    The text is free until `trigger`, with which each tag begins. Then one of the tags follows to its end, then free
    text again, and so on.
    If `parallel` is False, a text has at most one tag and ends with it.
    If `required`, there is no free text: the text is a tag. If `parallel` too, several tags may follow each other,
    with line breaks between them, and `ending` may follow the last one.
    With `otherwise` there is no free text either: the text is tags as with `required`, or that tag alone. `required`
    overrides `otherwise`.

    For example, this grammar makes every tool call that the text begins a valid one::

        tags = [
            Tag('<tool_call>\n{"name": "add", "arguments": ', schema_of_add, "}\n</tool_call>"),
            Tag('<tool_call>\n{"name": "now", "arguments": ', schema_of_now, "}\n</tool_call>"),
        ]
        request = GenerateRequest(prompt, grammar=tagged_text(tags, "<tool_call>"))

    Raises ValueError if there is no tag, or one does not begin with `trigger`.
    """
    if not tags or not trigger or not all(tag.begin.startswith(trigger) for tag in tags):
        raise ValueError(
            f"expected a trigger that is not empty, and tags that begin with it; got {trigger!r}, {tags!r}"
        )
    rules = [f"tag_{number}: {_slot(tag.begin[len(trigger) :], number, tag.end)}" for number, tag in enumerate(tags)]
    any_tag = " | ".join(f"tag_{number}" for number in range(len(tags)))
    if required or otherwise is not None:
        one = f"{_quoted(trigger)} ({any_tag})"
        last = f"{_quoted(ending)}?" if ending else ""
        line_break = _quoted("\n")
        start = f"{one} ({line_break} {one})* {last}" if parallel else one
        if otherwise is not None and not required:
            start = f"{start} | {_slot(otherwise.begin, len(tags), otherwise.end)}"
            tags = [*tags, otherwise]
    else:
        rules += [f"TEXT: {_TEXT}", "last: TEXT", f"free[lazy]: TEXT {_quoted(trigger)}"]
        start = f"(free ({any_tag}))* last" if parallel else f"free ({any_tag}) | last"
    lark = "\n".join(["%llguidance {}", f"start: {start}", *rules, ""])
    schemas = [
        {"name": tag.name, "schema": tag.schema, "strict": tag.strict, "is_object": tag.is_object} for tag in tags
    ]
    try:
        return Grammar("tagged", json.dumps({"lark": lark, "schemas": schemas}), "tools", is_written=False)
    except RecursionError:
        raise InvalidRequestError("tools", "JSON schemas", "less deeply nested objects and lists") from None


def _fit_tagged(grammar: Grammar) -> tuple[Grammar, tuple[str, ...]]:
    """Return a tagged text's grammar in Lark, with schemas that can be enforced; see `fit_grammar`."""
    text = json.loads(grammar.text, parse_float=parse_number)
    names: list[str] = []
    schemas = []
    for each in text["schemas"]:
        try:
            fitted = fit_schema(each["schema"], strict=each["strict"], is_object=each["is_object"])
        except GrammarError as error:
            raise error.below(each["name"]) from None
        names += (f"{each['name']}{fault.place}" for fault in fitted.left_out)
        schemas.append(json.dumps(with_options(fitted.schema, strict=each["strict"])))
    lark = _SLOT.sub(lambda found: f"%json {schemas[int(found[1])]}", text["lark"])
    return replace(grammar, kind="lark", text=lark), tuple(names)


_SLOT: Final = re.compile(r"%schema (\d+)")


def _slot(begin: str, number: int, end: str) -> str:
    """Return the grammar rule for a tagged part, with a mark in place of the schema with this number."""
    return " ".join(filter(None, (_quoted(begin), f"%schema {number}", _quoted(end))))


def loosened(grammar: Grammar) -> tuple[Grammar, tuple[str, ...]] | None:
    """Return a grammar that enforces no schema that is not strict, and the names of these; None without any."""
    if grammar.kind == "json_schema" and not grammar.strict:
        return replace(grammar, text="true", strict=True), (f"{grammar.field}#",)
    if grammar.kind != "tagged":
        return None
    text = json.loads(grammar.text)
    loose = [each for each in text["schemas"] if not each["strict"]]
    for each in loose:
        each.update(schema={"type": "object"} if each["is_object"] else True, strict=True)
    names = tuple(f"{each['name']}#" for each in loose)
    return (replace(grammar, text=json.dumps(text)), names) if loose else None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
