"""Grammars that the library llguidance runs, that is all kinds except kbnf, and token masks made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias
from urllib.parse import quote

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from rnn_engine.errors import StepError
from rnn_engine.grammar.grammar import Grammar, GrammarError
from rnn_engine.grammar.vocabulary import Vocabulary
from rnn_engine.types import mask_words

# JSON schemas before they are compiled: the spacing of the JSON, and the place of an error in a schema.

Schema: TypeAlias = Mapping[str, object] | bool

_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_LEVELS: Final = 100  # of nested objects and lists
_MOST_INTEGER: Final = 2**53  # up to it every integer is a float
_MOST_TRIES: Final = 100  # parts of a schema that are compiled to find an error


def load_schema(text: str) -> Schema:
    """Parse `text` as a JSON schema, and correct its URIs for llguidance, which refuses a schema for a wrong one.

    Raises GrammarError if it is not a schema, or refers to another document.
    """
    try:
        schema = json.loads(text, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is not valid JSON: {error or 'too deeply nested'}") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError("expected an object, true or false")
    if any(place.count("/") > _MOST_LEVELS for place, _ in _parts(schema)):
        raise GrammarError(f"it is too deeply nested; at most {_MOST_LEVELS} levels are allowed")
    for place, part in _parts(schema, with_data=False):
        reference = part.get("$ref") if isinstance(part, Mapping) else None
        if isinstance(reference, str) and not reference.startswith("#"):
            raise GrammarError(f"$ref {reference[:80]!r} refers to another document, and none is fetched (at {place})")
        if isinstance(part, dict):
            _correct_uris(part)
    return schema


def _correct_uris(part: dict[str, object]) -> None:
    """Quote the reference of a part of a schema, and remove an `$id` that is no URI and a `$schema` that is not known.

    A reference is often a plain name with spaces or brackets, and an `$id` a title.
    """
    match part.get("$ref"):
        case str(reference):
            part["$ref"] = f"#{_NOT_IN_URI.sub(_percent_encoded, reference[1:])}"
    match part.get("$id"):
        case str(name) if _NOT_IN_URI.search(name.replace("#", "", 1)):
            del part["$id"]
    match part.get("$schema"):
        case str(dialect) if not _DIALECT.fullmatch(dialect):
            del part["$schema"]


_NOT_IN_URI: Final = re.compile(r"[^A-Za-z0-9._~:/?@!$&'()*+,;=%-]|%(?![0-9A-Fa-f]{2})")
_DIALECT: Final = re.compile(
    r"http://json-schema\.org/draft-0[467]/schema#?|https://json-schema\.org/draft/20\d\d-\d\d/schema#?"
)


def _percent_encoded(found: re.Match[str]) -> str:
    return quote(found[0], safe="")


def _number(text: str) -> float | int:
    """Parse a JSON number with a point or an exponent. Whole numbers become int, since llguidance requires that."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= _MOST_INTEGER else value


def with_spacing(schema: Schema) -> Schema:
    """Return `schema` with options for llguidance that make it generate JSON on one line, spaced as by `json.dumps`.

    Options that the schema itself has under `x-guidance` take precedence.
    """
    if schema is False:
        return schema
    own = {} if schema is True else dict(schema)
    said = own.get("x-guidance")
    return {**own, "x-guidance": {**_SPACING, **(said if isinstance(said, Mapping) else {})}}


def error_place(schema: Schema, fails_alike: Callable[[Schema], bool]) -> str:
    """Return the JSON pointer of the smallest part of a schema that fails to compile with the whole's error."""
    definitions = (
        {} if isinstance(schema, bool) else {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    )
    found = "#"
    parts = ((place, part) for place, part in _parts(schema, with_data=False) if isinstance(part, Mapping))
    for place, part in islice(parts, _MOST_TRIES):
        if place.startswith(f"{found}/") and fails_alike({**definitions, **part}):
            found = place
    return found


_DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are JSON texts and no schemas."""

_BY_NAME: Final = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
"""Keywords with an object of schemas, whose keys are names and no keywords."""


def _parts(schema: object, *, with_data: bool = True) -> Iterator[tuple[str, object]]:
    """Yield a JSON schema and every value in it, each with its JSON pointer, outer values first.

    If not `with_data`, leave out the values of keywords that hold no schemas.
    """
    unseen: list[tuple[str, object, bool]] = [("#", schema, False)]
    while unseen:
        place, part, has_names = unseen.pop()
        yield place, part
        if isinstance(part, Mapping):
            children: list[tuple[object, object]] = [
                (key, child) for key, child in part.items() if with_data or has_names or key not in _DATA
            ]
        elif isinstance(part, list):
            children = list(enumerate(part))
        else:
            continue
        unseen.extend(
            (f"{place}/{_escaped(str(key))}", child, not has_names and key in _BY_NAME)
            for key, child in reversed(children)
        )


def _escaped(key: str) -> str:
    """Escape `key`, the key of a JSON object, for use in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


_LIMITS: Final = LLParserLimits(
    max_lexer_states=50_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,  # a choice of 500 objects needs 5,000; an ambiguous grammar needs more with each token
    verbose_errors=False,
)


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

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        """Compile `grammar` for `vocabulary`. Other Python threads can run. Raises GrammarError if it is invalid."""
        self._size = vocabulary.size
        self._matcher = _compile(_source(grammar), vocabulary)
        if error := self._matcher.get_error():
            raise GrammarError(_message(grammar, error, vocabulary))

    def start(self) -> GuidanceMask:
        """Return the token mask of a new text that follows the grammar, before its first token."""
        return GuidanceMask(self._matcher.deep_copy(), self._size)


def _compile(source: str, vocabulary: Vocabulary) -> LLMatcher:
    return LLMatcher(vocabulary.for_guidance, source, log_level=0, limits=_LIMITS)


def _source(grammar: Grammar) -> str:
    """Return `grammar` as source text in the form that the library llguidance compiles."""
    match grammar.kind:
        case "json_schema":
            return _json_source(load_schema(grammar.text))
        case "json_object":
            return _json_source({"type": "object"})
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in _load_choices(grammar.text))
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case "gbnf":
            return LLMatcher.grammar_from_lark(_translate(grammar.text))
        case _:
            return LLMatcher.grammar_from_lark(grammar.text)


def _json_source(schema: Mapping[str, object] | bool) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(with_spacing(schema)))


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


def _message(grammar: Grammar, error: str, vocabulary: Vocabulary) -> str:
    if grammar.kind != "json_schema":
        return error

    def fails_alike(part: Mapping[str, object] | bool) -> bool:
        return _compile(_json_source(part), vocabulary).get_error() == error

    return f"{error} (at {error_place(load_schema(grammar.text), fails_alike)})"


_TEXT = r"/(.|\n)*/"


@dataclass(frozen=True, slots=True)
class Tag:
    """A tagged part of a text, such as a tool call: `begin`, then JSON that follows `schema`, then `end`."""

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
    r"""Return the grammar of texts that contain tagged parts, such as tool calls; `tags` lists the possible ones.

    The text is free until `trigger`, with which each tag begins. Then one of the tags follows to its end, then free
    text again, and so on.
    If `parallel` is False, a text has at most one tag and ends with it.
    If `required`, there is no free text: the text is a tag. If `parallel` too, several tags may follow each other with
    `separator` between them, and `ending` may follow the last one.
    With a schema `otherwise` there is no free text either: the text is tags as with `required`, or JSON by the schema.
    `required` overrides `otherwise`.

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
    """Return the grammar rule for the part of a tagged text that follows `trigger`, the beginning of every tag."""
    json_text = f"%json {_spaced(tag.schema)}"
    return " ".join(filter(None, (_quoted(tag.begin[len(trigger) :]), json_text, _quoted(tag.end))))


def _spaced(schema: Mapping[str, object] | bool | None) -> str:
    return json.dumps(with_spacing(schema or {}), ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
