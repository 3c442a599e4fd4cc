"""Whatever schema a client sends that is not strict, its calls are JSON objects that follow what can be enforced."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.grammar import Grammar, GrammarCompiler, GrammarError, Tag, json_grammar, tagged_text
from rnn_engine.grammar.compiled import compile_grammar, fit_grammar
from rnn_engine.sampling.masks import TokenMask, allowed_tokens
from tests.support.grammars import byte_vocabulary, leads_to, takes

CALL = '<call>{"name": "f", "arguments": '


def forced_call(schema: object, *, strict: bool = False) -> Grammar:
    """Return the grammar of a call that must be made, with arguments by `schema`."""
    return tagged_text([Tag(CALL, schema, "}</call>", "tools.f", strict, is_object=True)], "<call>", required=True)


def left_out(schema: object) -> list[str]:
    """Return the places in `schema` of what is left out of it for the arguments of a call."""
    return [name.removeprefix("tools.f") for name in fit_grammar(forced_call(schema))[1]]


@pytest.mark.parametrize(
    ("part", "places", "good", "bad"),
    [
        *(
            ({"type": "string", "maxLength": 3, "pattern": pattern}, ["pattern"], '"abc"', '"abcd"')
            for pattern in (
                r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
                r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
                *(r"^(?!x)y$", r"(?<=a)b", r"a\bc", r"(a)\1", r"a\Z", r"\cA", "[^]", r"[\uD800-\uDFFF]", "^{a}$", "["),
                *("a^b", 3, None),
            )
        ),
        *(
            ({"type": "number", "minimum": 0, "maximum": most}, ["maximum"], "1.5", "-1")
            for most in (3.4028234663852886e38, 1.797e308, "1", None, -1)
        ),
        ({"type": "number", "minimum": -1e300, "maximum": 2}, ["minimum"], "-7", "3"),
        ({"type": "string", "$ref": "#/$defs/missing"}, ["$ref"], '"a"', "1"),
        ({"type": "string", "$ref": "https://example.org/s"}, ["$ref"], '"a"', "1"),
        ({"type": "string", "$ref": 3}, ["$ref"], '"a"', "1"),
        ({"$ref": "#/properties/a"}, ["$ref"], "1", "x"),
        ({"allOf": [{"$ref": "#/properties/a"}]}, ["allOf/0/$ref"], "1", "x"),
        ({"type": "string", "enum": None}, ["enum"], '"a"', "1"),
        ({"type": "object", "required": None, "properties": None}, ["properties", "required"], "{}", "1"),
        ({"type": "object", "required": "a"}, ["required"], "{}", "1"),
        ({"type": "object", "additionalProperties": "false"}, ["additionalProperties"], '{"z": 1}', "1"),
        ({"type": "object", "properties": {"x": None, "y": "t"}}, ["properties/x", "properties/y"], '{"x": 1}', "1"),
        (
            {"type": "object", "patternProperties": {"^(?!x)": {}}, "additionalProperties": False},
            ["patternProperties"],
            '{"z": 1}',
            "1",
        ),
        ({"type": "any", "maxLength": 2}, ["type"], '"ab"', '"abc"'),
        ({"type": "float"}, ["type"], "1", "x"),
        ({"type": None}, ["type"], "1", "x"),
        ({"type": "STRING"}, [], '"a"', "1"),
        ({"type": ["STRING", "NULL"]}, [], "null", "1"),
        ({"type": "string", "maxLength": 3.0}, [], '"abc"', '"abcd"'),
        ({"type": "string", "minLength": 5, "maxLength": 1}, ["maxLength"], '"abcdef"', '"abc"'),
        ({"type": "integer", "multipleOf": 0}, ["multipleOf"], "3", "1.5"),
        ({"type": "integer", "enum": ["a"]}, ["enum"], "3", '"a"'),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, ["allOf"], "3", "x"),
        ({"type": "array", "items": None}, ["items"], "[1]", "1"),
        ({"anyOf": None}, ["anyOf"], "1", "x"),
        ({"format": None, "type": "string"}, ["format"], '"a"', "1"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ["uniqueItems"], "[1, 1]", '["a"]'),
        ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, [], '"abcd"', "x"),
        (None, [""], "1", "x"),
        ("text", [""], "1", "x"),
    ],
)
def test_only_the_keyword_that_cant_be_enforced_is_left_out(
    part: object, places: list[str], good: str, bad: str
) -> None:
    schema = {"properties": {"a": part, "b": {"type": "integer"}}, "required": ["a", "b"]}
    assert left_out(schema) == ["/".join(filter(None, ("#/properties/a", place))) for place in places]
    grammar = forced_call(schema)
    assert takes(grammar, f'{CALL}{{"a": {good}, "b": 1}}}}</call>')
    assert not takes(grammar, f'{CALL}{{"a": {bad}, "b": 1}}}}</call>')
    assert not takes(grammar, f'{CALL}{{"a": {good}, "b": "c"}}}}</call>')


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        ({"type": "OBJECT"}, []),
        ({"type": ["object", "null"]}, []),
        ({"type": "string"}, ["#/type"]),
        ({"type": None}, ["#/type"]),
        ({"enum": ["a"]}, ["#/enum"]),
        ({"$ref": "#"}, ["#/$ref"]),
        (False, []),
        (None, ["#"]),
        ([], ["#"]),
        ({"x-guidance": {"what": 1}}, ["#/x-guidance"]),
        ({"required": ["c"], "properties": {"c": False}}, ["#/required"]),
        ({"required": ["a"], "additionalProperties": {"$ref": "#"}}, ["#/additionalProperties/$ref"]),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"pattern": "["}}}, ["#/$defs/b/pattern"]),
    ],
)
def test_arguments_are_an_object_whatever_the_schema_says(schema: object, places: list[str]) -> None:
    assert left_out(schema) == places
    assert takes(forced_call(schema), f'{CALL}{{"a": {{}}}}}}</call>')
    assert not takes(forced_call(schema), f'{CALL}"a"}}</call>')


def test_a_strict_schema_is_refused_with_the_place_and_the_value() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?!x)y"}}}
    for grammar, place in ((forced_call(schema, strict=True), "tools.f#"), (json_grammar(schema), "#")):
        with pytest.raises(GrammarError) as caught:
            compile_grammar(grammar, byte_vocabulary())
        error = str(grammar.refused(str(caught.value), caught.value.fault))
        assert error.startswith(f"{place.strip('#') or 'json_schema'}: ")
        assert "'(?!x)y' is not allowed" in error
        assert (
            f"look-around, including look-ahead and look-behind, is not supported (at {place}/properties/a/pattern)"
            in error
        )
        assert "%" not in error


@pytest.mark.parametrize(
    "part",
    [
        {"allOf": [{"type": "string", "pattern": f".*{number}.*"} for number in range(40)]},
        {"type": "integer", "const": -(2**63)},
    ],
    ids=["slow", "crash"],
)
def test_a_schema_that_takes_too_much_to_compile_is_not_enforced(part: object) -> None:
    compiler, schema = GrammarCompiler(byte_vocabulary, seconds=0.4), {"properties": {"a": part}}
    try:
        calls = compiler.compile(forced_call(schema)).result(timeout=60)
        assert list(calls.left_out) == ["tools.f#"]
        assert leads_to(calls.start(), f'{CALL}{{"b": 1}}}}</call>')
        json_text = compiler.compile(json_grammar(schema, strict=False)).result(timeout=60)
        assert list(json_text.left_out) == ["json_schema#"]
        assert leads_to(json_text.start(), '{"b": 1}')
        assert isinstance(compiler.compile(json_grammar(schema)).exception(timeout=60), GrammarError)
    finally:
        compiler.close()


_KEYWORDS = (
    *(
        "type",
        "properties",
        "patternProperties",
        "additionalProperties",
        "required",
        "items",
        "prefixItems",
        "minItems",
    ),
    *("maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "multipleOf", "enum", "const"),
    *(
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "$ref",
        "$defs",
        "$id",
        "$schema",
        "$anchor",
        "uniqueItems",
        "x-guidance",
    ),
)
_ODD = st.sampled_from(
    [
        *("^(?!x)y$", "[", "string", "object", "OBJECT", "any", "#", "#/$defs/a", "#/nope", "http://x/y", "a", "b", ""),
        *(0, -1, 2, 10.0, 10.5, 1e300, 2**70, True, False, None),
    ]
)


def _extend(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return the strategy of schemas, right ones and wrong ones, made of `parts`."""
    names = st.sampled_from(["a", "b"])
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "object", "array", "integer", ["string", "null"], "any", None]),
            "properties": st.dictionaries(names, parts, max_size=2),
            "required": st.lists(names, max_size=2),
            "additionalProperties": parts,
            "items": parts,
            "anyOf": st.lists(parts, max_size=2),
            "allOf": st.lists(parts, max_size=2),
            "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/nope"]),
            "$defs": st.dictionaries(names, parts, max_size=2),
            "minimum": st.sampled_from([0, 5, 1e300, "1"]),
            "maximum": st.sampled_from([0, 2, -1e300]),
            "pattern": st.sampled_from(["^a+$", "(?!x)", "["]),
            "not": parts,
        },
    )


_JSON = st.recursive(
    _ODD | st.text(max_size=3),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(_KEYWORDS), parts, max_size=4),
    max_leaves=6,
)


def walk(mask: TokenMask, chance: random.Random, most: int = 300) -> Iterator[bytes]:
    """Yield the tokens of a text that `mask` allows, which ends soon where it can."""
    vocabulary = byte_vocabulary()
    for _ in range(most):
        bits = mask.next()
        assert bits is not None
        allowed = allowed_tokens(bits, vocabulary.size).tolist()
        ends = [token for token in allowed if vocabulary.pieces[token] in (b'"', b"}", b"]")]
        token = chance.choice(ends or allowed)
        mask.accept(token)
        yield vocabulary.pieces[token]
        if mask.ended:
            return


@given(st.recursive(_JSON, _extend, max_leaves=8))
def test_any_json_is_a_schema_that_calls_can_follow(schema: object) -> None:
    fitted, _ = fit_grammar(
        tagged_text(
            [Tag(CALL, schema, "}</call>", "f", strict=False, is_object=True)], "<call>", required=True, parallel=False
        )
    )
    text = b"".join(walk(compile_grammar(fitted, byte_vocabulary()).start(), random.Random(1))).decode()
    assert text.endswith("}</call>"), text
    assert isinstance(json.loads(text.removeprefix(CALL).removesuffix("}</call>")), dict)
