"""The texts that each kind of grammar allows, and the points at which it may end."""

from __future__ import annotations

import json
import random
import re

import pytest

from rnn_engine.grammar import Grammar, GrammarError, Tag, Vocabulary, choice_grammar, json_grammar, tagged_text
from rnn_engine.grammar.compiled import check_start, compile_grammar
from rnn_engine.sampling.masks import Thinking, ThinkingMask, TokenMask, allowed_tokens
from rnn_engine.tokenizer.world import WORLD_PADDED_SIZE, WorldTokenizer
from tests.support.grammars import byte_vocabulary, leads_to, random_text, takes

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADD = Tag('<call>{"name": "add", "arguments": ', PERSON, "}</call>")
NOW = Tag('<call>{"name": "now", "arguments": ', {"type": "object"}, "}</call>")
ADD_CALL = '<call>{"name": "add", "arguments": {"name": "x", "age": 3}}</call>'
NOW_CALL = '<call>{"name": "now", "arguments": {}}</call>'


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (json_grammar(PERSON), ['{"name": "Ann", "age": 3}'], ['{"name": "Ann"}', '{"name": 1, "age": 3}', "x", ""]),
        (json_grammar({"type": "array", "minItems": 1.0, "maxItems": 2e0}), ["[1]", "[1, 2]"], ["[]", "[1, 2, 3]"]),
        (json_grammar(True), ["[1, true, null]", '"a"', "{}"], ["[1", "a"]),
        (Grammar("json_object"), ['{"a": {"b": [1, 2.5]}}', "{}"], ["[]", '{"a"}', "1"]),
        (Grammar("regex", r"[a-c]{2}\d*"), ["ab", "ca12"], ["a", "abc", "ab1x", ""]),
        (
            choice_grammar(["yes", "no", "nobody", 'a "quoted"\n\\ 日本']),
            ["yes", "no", 'a "quoted"\n\\ 日本'],
            ["y", "nob"],
        ),
        (Grammar("lark", 'start: "a" b*\nb: "b" | "(" b ")"'), ["a", "abb", "ab((b))"], ["b", "a((b)"]),
        (Grammar("gbnf", 'root ::= "a" rest\nrest ::= [0-9]+ | "-" root'), ["a1", "a-a-a42"], ["a", "a-"]),
        (Grammar("kbnf", 'start ::= "a" rest;\nrest ::= #"[0-9]" | "-" start;'), ["a1", "a-a-a4"], ["a", "a-", "b"]),
        (
            tagged_text([ADD, NOW], "<call>"),
            ["", "Hi <c", f"So {ADD_CALL}{NOW_CALL} x"],
            ["<call>", f"a{ADD_CALL[:-9]}"],
        ),
        (tagged_text([ADD, NOW], "<call>", parallel=False), ["", "Hi", f"So {ADD_CALL}"], [ADD_CALL + NOW_CALL]),
        (tagged_text([ADD, NOW], "<call>", required=True), [ADD_CALL, f"{ADD_CALL}\n{NOW_CALL}"], ["", f"x{ADD_CALL}"]),
        (tagged_text([NOW], "<call>", required=True, parallel=False), [NOW_CALL], ["", ADD_CALL, f"{NOW_CALL}\n"]),
    ],
)
def test_grammar_leads_to_its_texts_alone(grammar: Grammar, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not takes(grammar, text)] == []
    assert [text for text in bad if takes(grammar, text)] == []


@pytest.mark.parametrize("grammar", [Grammar("regex", "ab*c"), Grammar("kbnf", 'start ::= "a" #"b*" "c";')])
@pytest.mark.parametrize("has_thoughts", [False, True])
def test_a_copy_goes_on_by_itself_from_the_same_place(grammar: Grammar, has_thoughts: bool) -> None:
    compiled, vocabulary = compile_grammar(grammar, byte_vocabulary()), byte_vocabulary()
    mask: TokenMask = compiled.start()
    before = "a"
    if has_thoughts:
        (end,) = vocabulary.encode(".")
        mask, before = ThinkingMask(Thinking(b".", [end], 1), chr_of, vocabulary.size, compiled.start), "?.a"
    for token in vocabulary.encode(before):
        if not mask.forced():
            mask.next()
        mask.accept(token)
    copies = [mask.copy() for _ in range(3)]
    assert [leads_to(one, text) for one, text in zip(copies, ("bbc", "bb", "c"), strict=True)] == [True, False, True]
    assert leads_to(mask, "bc")


def chr_of(token: int) -> bytes:
    return bytes([token - 1])


def test_a_text_of_the_world_vocabulary_may_end_where_the_grammar_may_and_has_whole_characters() -> None:
    world = Vocabulary.of(WorldTokenizer(), WORLD_PADDED_SIZE)
    assert takes(json_grammar(PERSON), '{"name": "日本 🦜", "age": 3}', world)
    for seed in range(8):
        text = random_text(json_grammar({"type": "string", "maxLength": 8}), seed, world)
        assert text is not None
        assert len(json.loads(text.decode())) <= 8


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (json_grammar({"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "array", "uniqueItems": True}]}}}),
         r'Unimplemented keys: \["uniqueItems"\] \(at #/properties/a/anyOf/1/uniqueItems\)'),
        (json_grammar({"anyOf": [{}, {"uniqueItems": True}, *[{}] * 8, {"uniqueItems": True}]}),
         r"\(at #/anyOf/1/uniqueItems\)"),
        (json_grammar({"properties": {"a": {"uniqueItems": True}, "ab": {"uniqueItems": True}}}),
         r"#/properties/a/uniqueItems\)"),
        (json_grammar({"items": {"$ref": "https://example.org/s"}}), r"none is fetched \(at #/items/\$ref\)"),
        (json_grammar({"properties": {"const": {"$ref": "a.json"}}}), r"fetched \(at #/properties/const/\$ref\)"),
        (json_grammar({"$defs": {"enum": {"$ref": "a.json"}}, "$ref": "#/$defs/enum"}), r"\(at #/\$defs/enum/\$ref\)"),
        (json_grammar({"type": "number", "minimum": 3, "maximum": 1}), "minimum .3. is greater"),
        (json_grammar(False), "schema is false"),
        (Grammar("json_schema", "[1, "), "not valid JSON"),
        (Grammar("json_schema", "3"), "expected an object, true or false"),
        (Grammar("json_schema", '{"items":' * 400 + "{}" + "}" * 400), "recursion limit|too deeply nested"),
        (Grammar("regex", "ab(c"), "unclosed group"),
        (Grammar("regex", "a{9999999}"), "can't be followed"),
        (Grammar("choice", "[]"), "not empty"),
        (Grammar("choice", "[1]"), "list of strings"),
        (Grammar("lark", 'start: "a" thing'), r'1\(8\): unknown name: "thing"'),
        (Grammar("lark", 'begin: "a"'), "start"),
        (Grammar("gbnf", 'root ::= "a" (b'), r"Expected '\)'.* line 1"),
        (Grammar("gbnf", "root ::= " + "(" * 5000), "too deeply nested"),
        (Grammar("kbnf", 'start ::= "a";\nb ::= \U0001f99c ;'), "line 2, column 7 on: '🦜 ;'"),
        (Grammar("kbnf", "start ::= thing;"), "`thing` is not defined"),
        (Grammar("kbnf", "start ::= start;"), "empty"),
    ],
)  # fmt: skip
def test_a_wrong_grammar_is_refused_with_the_place(grammar: Grammar, message: str) -> None:
    vocabulary = byte_vocabulary()
    with pytest.raises(GrammarError, match=message):
        check_start(compile_grammar(grammar, vocabulary), vocabulary.size)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"$ref": "https://example.org/s"}},
        {"enum": [{"$ref": "https://example.org/s"}]},
        {"type": "object", "default": {"$ref": "https://example.org/s"}, "examples": [{"$ref": "a"}]},
        {"properties": {"default": {"const": 3}}, "default": {"$ref": "a"}, "type": "object"},
    ],
)
def test_data_in_a_schema_is_not_read_as_a_schema(schema: dict[str, object]) -> None:
    assert takes(json_grammar(schema), '{"$ref": "https://example.org/s"}', byte_vocabulary())


def test_tags_begin_with_their_trigger() -> None:
    for tags, trigger in (([], "<call>"), ([ADD], ""), ([ADD], "<tool>")):
        with pytest.raises(ValueError, match="tags that begin with it"):
            tagged_text(tags, trigger)


@pytest.mark.parametrize(
    ("pattern", "beginning"),
    [
        ("[a-z]{5,20}", "[a-z]{1,20}"),
        ("[A-Za-z]{2,12}", "[A-Za-z]{1,12}"),
        ("[A-Za-z0-9 ,.]{10,40}", "[A-Za-z0-9 ,.]{1,40}"),
        ("([a-z]{1,4} ){2,6}", "([a-z]{1,4} ){0,5}[a-z]{1,4} ?"),
    ],
)
def test_counted_repetitions_allow_all_tokens_that_lead_on(pattern: str, beginning: str) -> None:
    world = Vocabulary.of(WorldTokenizer(), WORLD_PADDED_SIZE)
    mask, chance, text = compile_grammar(Grammar("regex", pattern), world).start(), random.Random(1), b""
    while not mask.ended and len(text) < 16:
        found = set(allowed_tokens(mask.next(), world.size).tolist()) - {0}
        leads_on = re.compile(beginning.encode()).fullmatch
        assert found == {token for token, piece in enumerate(world.pieces) if piece and leads_on(text + piece)}
        token = chance.choice(sorted(found))
        mask.accept(token)
        text += world.pieces[token]
