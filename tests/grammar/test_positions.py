"""The line and column that an error in a grammar's text names."""

from __future__ import annotations

import pytest

from rnn_engine.grammar import Grammar, GrammarError, GrammarKind, choice_grammar, json_grammar
from rnn_engine.grammar.compiled import check_start, compile_grammar
from rnn_engine.grammar.grammar import json_offset
from tests.support.grammars import byte_vocabulary

WRONG: list[tuple[GrammarKind, str]] = [
    ("gbnf", 'root ::= "a" foo\nfoo ⟦:= "b'),
    ("gbnf", 'root ::= "aaa" |\n  "aaa" |\n  "aaa" ⟦)'),
    ("gbnf", 'root ::= "a" (⟦'),
    ("gbnf", '# foo, "foo"\nroot ::= "foo" [foo] x-foo ⟦foo\nx-foo ::= "x"'),
    ("gbnf", 'root ::= "é中\\⟦q"'),
    ("lark", 'start: "a" foo\nfoo: "b⟦\n'),
    ("lark", 'start: ⟦"a" thing'),
    ("lark", 'start: "ééé" ⟦) "x" "yyy"'),
    ("lark", 'start: a\na: "é" (⟦'),
    ("kbnf", 'start ::= "a";\nb ::= ⟦🦜 ;'),
    ("kbnf", '(* thing *) start ::= "thing" | ⟦thing;'),
    ("regex", "a/b/é中⟦(x"),
    ("regex", "a\nb\\/\\d⟦(x"),
    ("regex", "⟦[z"),
    ("json_schema", '{"type": "object",\n "properties": {"a": {}}⟦'),
    ("json_schema", '{"a/b": [1, "]}"],\n "properties": {"a": {"type": "null"}, "a/b~": {"type": ⟦"strin"}}}'),
    ("json_schema", '{"anyOf": [{"type": "null"},\n  {"type": ⟦"strin"}]}'),
    ("json_schema", ' {"type": "string", "pattern": ⟦"(a"}'),
]


@pytest.mark.parametrize(("kind", "marked"), WRONG)
def test_the_position_of_an_error_is_where_its_text_is_wrong(kind: GrammarKind, marked: str) -> None:
    before, after = marked.split("⟦")
    grammar, vocabulary = Grammar(kind, before + after), byte_vocabulary()
    with pytest.raises(GrammarError) as caught:
        check_start(compile_grammar(grammar, vocabulary), vocabulary.size)
    expected = before.count("\n") + 1, len(before.rsplit("\n")[-1]) + 1
    assert grammar.refused(str(caught.value)).position == expected, str(caught.value)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (json_grammar({"type": "strin"}), "Invalid type: strin (at #)"),
        (choice_grammar(["a"]), "expected a list of strings that is not empty"),
        (Grammar("gbnf", "x ::= y"), "No 'root' rule found"),
        (Grammar("gbnf", "root ::= a"), "Unexpected at line 7, 'elsewhere' ^ ''"),
        (Grammar("regex", "a{9}"), "it takes 9 s to compile; at most 1 s are allowed"),
        (Grammar("json_schema", "{}"), "Invalid type (at #/properties/a)"),
        (Grammar("json_object"), "the model has no tokenizer"),
    ],
)
def test_an_error_has_no_position_where_none_is_known_or_the_client_wrote_no_text(
    grammar: Grammar, reason: str
) -> None:
    assert grammar.refused(reason).position is None


@pytest.mark.parametrize(("line", "column", "expected"), [(9, 1, (2, 3)), (1, 99, (1, 3)), (2, 0, (2, 1))])
def test_a_position_outside_the_text_is_moved_into_it(line: int, column: int, expected: tuple[int, int]) -> None:
    assert Grammar("lark", "ab\ncd").refused(f"at {line}({column}): unknown name").position == expected


def test_values_in_json_are_found_by_their_pointers() -> None:
    text = ' {"a" : [ 1 , {"b": "]"} , [ ] ] ,\n "c":{}}'
    for keys, value in ((["a"], "["), (["a", "0"], "1"), (["a", "1", "b"], '"]"'), (["a", "2"], "[ ]"), (["c"], "{}")):
        offset = json_offset(text, keys)
        assert offset is not None
        assert text[offset:].startswith(value)
    for unknown in (["d"], ["a", "3"], ["a", "0", "x"], ["c", "x"]):
        assert json_offset(text, unknown) is None
    assert json_offset("", []) is None
