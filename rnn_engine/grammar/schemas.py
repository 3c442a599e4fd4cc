"""Fit JSON schemas to what the library llguidance can enforce.

The library refuses a schema for one keyword that it can't enforce. Such keywords are found by compiling parts of the
schema, so nothing here repeats what the library allows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from rnn_engine.grammar.grammar import Fault, GrammarError

Schema: TypeAlias = Mapping[str, object] | bool

LIMITS: Final = LLParserLimits(
    max_lexer_states=50_000,
    step_lexer_fuel=100_000,
    max_items_in_row=10_000,  # an object of 1,000 optional properties needs 4,000
    step_max_items=10_000,  # a choice of 500 objects needs 5,000; an ambiguous grammar needs more with each token
    verbose_errors=False,
)
_BYTES: Final = LLTokenizer("byte")
_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_LEVELS: Final = 100  # of nested objects and lists
_MOST_INTEGER: Final = 2**53  # up to it every integer is a float
_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are JSON texts and no schemas."""
_DEFINITIONS: Final = ("$defs", "definitions")
_BY_NAME: Final = frozenset({*_DEFINITIONS, "dependencies", "dependentSchemas", "patternProperties", "properties"})
"""Keywords with an object of schemas, whose keys are names and no keywords."""
_FIRST: Final = ("type", "properties", "patternProperties", "prefixItems", "items")
"""Keywords that are kept rather than others that contradict them."""
_ONLY_BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "additionalProperties": ("properties", "patternProperties"),
    "additionalItems": ("items",),
    "items": ("prefixItems",),
}
"""Keywords that would forbid more than the schema does if one of these others is left out."""


@dataclass(frozen=True, slots=True)
class FittedSchema:
    """A schema that the library can enforce, and what of the client's schema was left out for that."""

    schema: Schema
    left_out: tuple[Fault, ...] = ()


def load_schema(text: str, *, strict: bool = True) -> Schema:
    """Parse `text` as a JSON schema. Raises GrammarError if it is none or, if `strict`, is too deeply nested."""
    try:
        schema = json.loads(text, parse_float=parse_number)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is not valid JSON: {error or 'too deeply nested'}") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError("expected an object, true or false")
    if strict and any(level > _MOST_LEVELS for _, _, level in _parts(schema)):
        raise GrammarError(f"it is too deeply nested; at most {_MOST_LEVELS} levels are allowed")
    for _, part, _ in _parts(schema):
        _correct_uris(part)
    return schema


def fit_schema(schema: object, *, strict: bool, is_object: bool = False) -> FittedSchema:
    """Leave out of a parsed JSON schema, which may be changed, what the library can't enforce.

    What a keyword or a part of the schema allows is then allowed, and more. If `is_object`, the schema is one of
    objects. If `strict`, nothing is left out: raises GrammarError for what can't be enforced.
    """
    fitting = _Fitting(strict)
    fitted = fitting.fit(schema, is_object)
    if strict and fitting.left_out:
        fault = fitting.left_out[0]
        raise GrammarError(f"{fault.reason} (at {fault.place})", fault)
    return FittedSchema(fitted, tuple(fitting.left_out))


def with_options(schema: Schema, *, strict: bool = True) -> Schema:
    """Return `schema` with options for llguidance that make it generate JSON on one line, spaced as by `json.dumps`.

    If not `strict`, a text may follow several parts of a `oneOf`. Options that the schema itself has under `x-guidance`
    take precedence.
    """
    if schema is False:
        return schema
    own = {} if schema is True else dict(schema)
    said = own.get("x-guidance")
    options = {**_SPACING, **({} if strict else {"coerce_one_of": True})}
    return {**own, "x-guidance": {**options, **(said if isinstance(said, Mapping) else {})}}


class _Fitting:
    """Collects what is left out of one schema. Parts of the schema are changed in place."""

    def __init__(self, strict: bool) -> None:
        self.left_out: list[Fault] = []
        self._strict = strict

    def fit(self, schema: object, is_object: bool) -> Schema:
        if not isinstance(schema, dict | bool):
            schema = self._leave_out("#", schema, "expected an object, true or false")
        if isinstance(schema, dict):
            self._correct(schema)
            self._break_circles(schema)
        if is_object and not self._strict:
            schema = self._as_object(schema)
        reason = self._start_error(schema)
        if not reason:
            return schema
        if isinstance(schema, bool):
            return self._leave_out("#", schema, reason)
        references = list(self._take_references(schema))
        self._clean("#", schema)
        for name in _DEFINITIONS:
            self._clean_all(f"#/{name}", schema.get(name))
        self._add_references(schema, references)
        if reason := self._start_error(schema):
            schema = {**self._leave_out("#", schema, reason), **({"type": "object"} if is_object else {})}
        return schema

    def _leave_out(self, place: str, value: object, reason: str) -> dict[str, object]:
        """Note that `value` is left out, and return the schema that allows any JSON."""
        self.left_out.append(Fault(place, value, reason))
        return {}

    def _error(self, schema: Schema) -> str:
        """Return the library's error for a schema, or an empty text."""
        try:
            source = json_source(with_options(schema, strict=self._strict))
            is_error, messages = LLMatcher.validate_grammar_with_warnings(source, None, limits=LIMITS)
        except BaseException as error:  # the library raises plain exceptions, and panics that are none
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return plain_reason(str(error))
        return plain_reason(messages[0]) if is_error else ""

    def _start_error(self, schema: Schema) -> str:
        """Return the library's error for a schema or for following the beginning of its texts, or an empty text."""
        if error := self._error(schema):
            return error
        matcher = LLMatcher(_BYTES, json_source(with_options(schema, strict=self._strict)), log_level=0, limits=LIMITS)
        for _ in range(2):
            mask = matcher.compute_bitmask()[:32]  # without the end of the text
            allowed = [8 * place + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
            if not matcher.is_error() and not allowed:
                return "no text matches it"
            if matcher.is_error() or not matcher.consume_token(allowed[-1]) or matcher.is_stopped():
                break
        return plain_reason(matcher.get_error())

    def _correct(self, schema: dict[str, Any]) -> None:
        """Correct the URIs of a schema, and if not strict the case of its types, for which the library refuses it."""
        for _, part, _ in _parts(schema):
            _correct_uris(part)
            if not self._strict:
                match part.get("type"):
                    case str(kind):
                        part["type"] = _type(kind)
                    case list(kinds):
                        part["type"] = [_type(kind) for kind in kinds]

    def _break_circles(self, schema: dict[str, Any]) -> None:
        """Leave out references to what consists of them: the library overflows its stack, or then allows no text."""
        for place, part, _ in _parts(schema):
            passed: dict[int, object] = {}
            unseen = [part] if "$ref" in part else []
            while unseen:
                for each in _constituents(schema, unseen.pop()):
                    if each is part:
                        self._leave_out(f"{place}/$ref", part.pop("$ref"), "it refers to itself")
                        unseen.clear()
                        break
                    if id(each) not in passed:
                        passed[id(each)] = each
                        unseen.append(each)

    def _as_object(self, schema: Schema) -> dict[str, object]:
        if isinstance(schema, bool):
            return {"type": "object"}
        kind = schema.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            self._leave_out("#/type", kind, "the arguments of a call are an object")
        return {"type": "object", **{key: value for key, value in schema.items() if key != "type"}}

    def _clean(self, place: str, part: dict[str, Any]) -> None:
        """Remove from a part of a schema what can't be enforced: the innermost keywords first."""
        if not self._error(part):
            return
        for key, value in part.items():
            if key not in _DATA:
                self._clean_all(f"{place}/{_escaped(key)}", value, has_names=key in _BY_NAME)
        if not self._error(part):
            return
        kept: dict[str, Any] = {}
        for key in sorted(part, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST)):
            if any(part.get(other) is not None and other not in kept for other in _ONLY_BESIDE.get(key, ())):
                continue
            if reason := self._error({**kept, key: part[key]}):
                self._leave_out(f"{place}/{_escaped(key)}", part[key], reason)
            else:
                kept[key] = part[key]
        for key in part.keys() - kept.keys():
            del part[key]

    def _clean_all(self, place: str, value: object, *, has_names: bool = True) -> None:
        """Clean the schemas in the value of a keyword: a schema, a list or, if it `has_names`, an object of schemas."""
        if isinstance(value, dict) and not has_names:
            self._clean(place, value)
        elif isinstance(value, dict | list):
            for key, child in list(value.items() if isinstance(value, dict) else enumerate(value)):
                below = f"{place}/{_escaped(str(key))}"
                if isinstance(child, dict):
                    self._clean(below, child)
                elif isinstance(value, dict) and not isinstance(child, bool):
                    value[key] = self._leave_out(below, child, "schema must be an object or boolean")

    def _take_references(self, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Remove all references, so that parts can be compiled alone; yield those that lead to a part."""
        parts = [(place, part) for place, part, _ in _parts(schema)]
        anchors = [part.get("$anchor") for _, part in parts]
        for place, part in parts:
            if "$ref" not in part:
                continue
            reference = part.pop("$ref")
            if not isinstance(reference, str):
                self._leave_out(f"{place}/$ref", reference, "$ref must be a string")
            elif not reference.startswith("#"):
                self._leave_out(f"{place}/$ref", reference, "it refers to another document, and none is fetched")
            elif reference[1:] not in anchors and not isinstance(_target(schema, reference), dict | bool):
                self._leave_out(f"{place}/$ref", reference, "it refers to nothing in the schema")
            else:
                yield place, part, reference

    def _add_references(self, schema: Schema, references: list[tuple[str, dict[str, Any], str]]) -> None:
        """Add references to their parts: all of them, or one by one if the library refuses some of them."""
        for _, part, reference in references:
            part["$ref"] = reference
        if not self._start_error(schema):
            return
        for _, part, _ in references:
            del part["$ref"]
        for place, part, reference in references:
            part["$ref"] = reference
            if reason := self._start_error(schema):
                self._leave_out(f"{place}/$ref", part.pop("$ref"), reason)


def json_source(schema: Schema) -> str:
    """Return a JSON schema as source text in the form that the library llguidance compiles."""
    return LLMatcher.grammar_from_json_schema(json.dumps(with_options(schema)))


def plain_reason(error: str) -> str:
    """Return the library's message without the lines in which it repeats a regular expression or a grammar."""
    last = error.rpartition("\nerror: ")[2].removesuffix("<non-verbose/>").strip()
    return last.partition("\n")[0]


def parse_number(text: str) -> float | int:
    """Parse a JSON number with a point or an exponent. Whole numbers become int, since llguidance requires that."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= _MOST_INTEGER else value


def _type(kind: Any) -> Any:  # noqa: ANN401
    """Return a type in lower case if it is known so, as in Gemini's schemas."""
    return kind.lower() if isinstance(kind, str) and kind.lower() in _TYPES else kind


def _parts(schema: object) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield each object of a JSON schema that is a schema, with its JSON pointer and level, outer ones first."""
    unseen: list[tuple[str, object, bool, int]] = [("#", schema, False, 0)]
    while unseen:
        place, part, has_names, level = unseen.pop()
        if isinstance(part, dict):
            if not has_names:
                yield place, part, level
            children = [(key, child) for key, child in part.items() if has_names or key not in _DATA]
        elif isinstance(part, list):
            children = [(str(number), child) for number, child in enumerate(part)]
        else:
            continue
        unseen.extend(
            (f"{place}/{_escaped(key)}", child, not has_names and key in _BY_NAME, level + 1)
            for key, child in reversed(children)
        )


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _target(schema: object, reference: str) -> object:
    """Return the value within `schema` to which a reference such as `#/$defs/a` leads; None if there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    value = schema
    for key in filter(None, unquote(reference[1:]).split("/")):
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _constituents(schema: object, part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schemas of which a text of `part` has to follow all or one, besides its own keywords."""
    reference = part.get("$ref")
    found = [_target(schema, reference)] if isinstance(reference, str) else []
    for key in ("allOf", "anyOf", "oneOf"):
        found += each if isinstance(each := part.get(key), list) else []
    yield from (each for each in found if isinstance(each, dict))


def _correct_uris(part: dict[str, object]) -> None:
    """Quote the reference of a part of a schema, and remove an `$id` that is no URI and a `$schema` that is not known.

    The library refuses a schema for a wrong one, and reads a part with an empty `$id` as the whole schema. A reference
    is often a plain name with spaces or brackets, and an `$id` a title.
    """
    match part.get("$ref"):
        case str(reference) if reference.startswith("#"):
            part["$ref"] = f"#{_NOT_IN_URI.sub(lambda found: quote(found[0], safe=''), reference[1:])}"
    for key in ("$id", "id"):
        match part.get(key):
            case str(name) if name in ("", "#") or _NOT_IN_URI.search(name.replace("#", "", 1)):
                del part[key]
    match part.get("$schema"):
        case str(dialect) if not _DIALECT.fullmatch(dialect):
            del part["$schema"]


_NOT_IN_URI: Final = re.compile(r"[^A-Za-z0-9._~:/?@!$&'()*+,;=%-]|%(?![0-9A-Fa-f]{2})")
_DIALECT: Final = re.compile(
    r"http://json-schema\.org/draft-0[467]/schema#?|https://json-schema\.org/draft/20\d\d-\d\d/schema#?"
)
