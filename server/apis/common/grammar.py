"""The fields that restrict an answer to a grammar, in the forms that clients of several servers send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema

from rnn_engine.errors import InvalidRequestError
from rnn_engine.grammar import Grammar, choice_grammar, json_grammar, written_grammar
from server.apis.common.sampling import SamplingBody
from server.core.schema import STRING, RefusedError
from server.core.settings import Limits


def _response_format(value: object) -> Grammar | None:
    name = "response_format"
    match value:
        case {"type": "text", **rest} if not rest:
            return None
        case {"type": "json_object", "schema": schema, **rest} if not rest:
            return _json(schema, f"{name}.schema")
        case {"type": "json_object", **rest} if not rest:
            return Grammar("json_object", field=name)
        case {"type": "json_schema", "json_schema": dict(named), **rest} if not rest:
            return _named_schema(named, f"{name}.json_schema")
        case {"type": "json_schema", "schema": schema, **rest} if not rest:
            return _json(schema, f"{name}.schema")
    return _typed(value, name)


def _named_schema(named: Mapping[str, object], name: str) -> Grammar:
    """Return the grammar for OpenAI's object that holds a JSON schema with its name. Raises RefusedError."""
    for key in named:
        if key not in ("name", "description", "schema", "strict"):
            raise RefusedError(named[key], "one of the fields name, description, schema, strict", f"json_schema.{key}")
    schema, strict = named.get("schema"), named.get("strict")
    if strict not in (None, True, False):
        raise RefusedError(strict, "true, false or null", "json_schema.strict")
    if schema is None:
        return Grammar("json_object", field=name)
    return _json(schema, f"{name}.schema", strict=strict is not False)


def _typed(value: object, name: str) -> Grammar:
    """Return the grammar for TGI's object with `type` and `value`. Raises RefusedError."""
    match value:
        case {"type": "regex", "value": str(pattern), **rest} if not rest:
            return Grammar("regex", pattern, f"{name}.value")
        case {"type": "json" | "json_schema", "value": schema, **rest} if not rest:
            return _json(schema, f"{name}.value")
    raise RefusedError(value, _FORMATS)


_FORMATS = (
    '{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, '
    '{"type": "json", "value": a schema} or {"type": "regex", "value": ...}'
)


def _grammar(value: object) -> Grammar:
    if isinstance(value, str):
        return written_grammar(value, "grammar")
    return _typed(value, "grammar")


def _structured_outputs(value: object) -> Grammar | None:
    """Return the grammar for vLLM's object `structured_outputs`, or None if it restricts nothing.

    Raises RefusedError.
    """
    if not isinstance(value, dict):
        raise RefusedError(value, f"an object with one of {', '.join(_STRUCTURED)}")
    given = {key: one for key, one in value.items() if one is not None and one is not False}
    for key in value:
        if key not in _STRUCTURED:
            raise RefusedError(value[key], f"one of the fields {', '.join(_STRUCTURED)}", key)
    if len(given) > 1:
        raise RefusedError(value, f"only one of the fields {', '.join(given)}")
    return next((_STRUCTURED[key](one, f"structured_outputs.{key}") for key, one in given.items()), None)


def _json(value: object, name: str, *, strict: bool = True) -> Grammar:
    """Return the grammar for a JSON schema, given as an object or as JSON text. Raises RefusedError."""
    if isinstance(value, str):
        return Grammar("json_schema", value, name)
    if isinstance(value, dict | bool):
        return json_grammar(value, name, strict=strict)
    raise RefusedError(value, "a JSON schema")


def _json_object(value: object, name: str) -> Grammar:
    if value is not True:
        raise RefusedError(value, "true or null")
    return Grammar("json_object", field=name)


def _regex(value: object, name: str) -> Grammar:
    if not isinstance(value, str):
        raise RefusedError(value, "a regular expression as a string")
    return Grammar("regex", value, name)


def _choice(value: object, name: str) -> Grammar:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise RefusedError(value, "a list of strings that is not empty")
    return choice_grammar(value, name)


def _written(value: object, name: str) -> Grammar:
    if not isinstance(value, str):
        raise RefusedError(value, "a grammar as a string")
    return written_grammar(value, name)


def _kbnf(value: object, name: str) -> Grammar:
    if not isinstance(value, str):
        raise RefusedError(value, "a grammar of kbnf as a string")
    return Grammar("kbnf", value, name)


_STRUCTURED: Mapping[str, Callable[[Any, str], Grammar]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _written,
}

_NULL = {"type": "null"}
_OBJECT = {"type": "object"}
_SCHEMA = {"anyOf": [_OBJECT, STRING, _NULL]}
_TEXT = {"anyOf": [STRING, _NULL]}

ResponseFormat: TypeAlias = Annotated[
    Grammar | None, PlainValidator(_response_format), WithJsonSchema({"anyOf": [_OBJECT, _NULL]})
]
StructuredOutputs: TypeAlias = Annotated[
    Grammar | None, PlainValidator(_structured_outputs), WithJsonSchema({"anyOf": [_OBJECT, _NULL]})
]
AnyGrammar: TypeAlias = Annotated[Grammar | None, PlainValidator(_grammar), WithJsonSchema(_SCHEMA)]
JsonSchema: TypeAlias = Annotated[
    Grammar | None, PlainValidator(partial(_json, name="json_schema")), WithJsonSchema(_SCHEMA)
]
GuidedJson: TypeAlias = Annotated[
    Grammar | None, PlainValidator(partial(_json, name="guided_json")), WithJsonSchema(_SCHEMA)
]
GuidedRegex: TypeAlias = Annotated[
    Grammar | None, PlainValidator(partial(_regex, name="guided_regex")), WithJsonSchema(_TEXT)
]
GuidedChoice: TypeAlias = Annotated[
    Grammar | None,
    PlainValidator(partial(_choice, name="guided_choice")),
    WithJsonSchema({"anyOf": [{"type": "array", "items": STRING}, _NULL]}),
]
GuidedGrammar: TypeAlias = Annotated[
    Grammar | None, PlainValidator(partial(_written, name="guided_grammar")), WithJsonSchema(_TEXT)
]
BnfSchema: TypeAlias = Annotated[
    Grammar | None, PlainValidator(partial(_kbnf, name="bnf_schema")), WithJsonSchema(_TEXT)
]

GRAMMAR_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
    "bnf_schema",
)


class GrammarBody(SamplingBody):
    """A body with the fields that restrict an answer to a grammar. At most one such field may be set."""

    response_format: ResponseFormat = Field(
        default=None,
        description='The form of the answer: `{"type": "text"}`, `{"type": "json_object"}`, '
        '`{"type": "json_schema", "json_schema": {"name": ..., "schema": ..., "strict": ...}}`, '
        '`{"type": "json_object", "schema": ...}`, `{"type": "json", "value": a schema}` or '
        '`{"type": "regex", "value": ...}`. A schema is refused if it has a keyword that a grammar can\'t '
        "enforce. With `strict` false, such keywords are ignored.",
    )
    structured_outputs: StructuredOutputs = Field(
        default=None, description="An object with `json`, `json_object`, `regex`, `choice` or `grammar`."
    )
    guided_json: GuidedJson = Field(default=None, description="A JSON schema that the answer follows.")
    guided_regex: GuidedRegex = Field(
        default=None, description="A regular expression that the whole answer matches, in the syntax of Rust's `regex`."
    )
    guided_choice: GuidedChoice = Field(default=None, description="Texts. The answer is one of them.")
    guided_grammar: GuidedGrammar = Field(
        default=None, description="A grammar that the answer follows: llama.cpp's GBNF, or llguidance's Lark."
    )
    grammar: AnyGrammar = Field(
        default=None,
        description='As `guided_grammar`; or an object `{"type": "json", "value": a schema}` or `{"type": "regex", '
        '"value": ...}`.',
    )
    json_schema: JsonSchema = Field(default=None, description="As `guided_json`.")
    bnf_schema: BnfSchema = Field(
        default=None,
        description="A grammar of kbnf that the answer follows. The answer ends as soon as it is complete.",
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        given = [name for name in GRAMMAR_FIELDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidRequestError(given[1], getattr(self, given[1]).text, f"null, since {given[0]} is given, too")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if (grammar := self.answer_grammar) is not None:
            limits.check("max_grammar_bytes", grammar.field, len(grammar.text.encode(errors="replace")))

    @property
    def answer_grammar(self) -> Grammar | None:
        """The grammar that the answer follows; None allows any text."""
        return next((one for name in GRAMMAR_FIELDS if (one := getattr(self, name)) is not None), None)
