"""Grammars whose masks take longer and longer end in an error, and large ordinary ones do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rnn_engine.demo import model_path
from rnn_engine.errors import StepError
from rnn_engine.grammar import Grammar, Vocabulary, choice_grammar, compiled, json_grammar, start_after, written_grammar
from rnn_engine.grammar.compiled import compile_grammar
from rnn_engine.sampling.masks import TokenMask
from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer
from tests.support.grammars import takes

AMBIGUOUS = "root ::= (x x x x x x)*\nx ::= [a-z]* | [a-z ]* | x x\n"
WORDS = " the quick brown fox jumps over the lazy dog and then it goes home to sleep for a long time"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """Return tokens of several letters. Each letter adds to the data that an ambiguous grammar has to keep."""
    tokenizer = HuggingFaceTokenizer(Path(model_path()).parent / "tokenizer.json")
    return Vocabulary.of(tokenizer, tokenizer.size)


def follow(mask: TokenMask, tokens: Sequence[int]) -> None:
    for token in tokens:
        mask.next()
        mask.accept(token)


def test_an_ambiguous_grammar_ends_before_its_masks_take_long(vocabulary: Vocabulary) -> None:
    mask = compile_grammar(written_grammar(AMBIGUOUS), vocabulary).start()
    tokens = vocabulary.encode(WORDS)
    with pytest.raises(StepError, match=r"can't be followed further: .*Too many items"):
        follow(mask, tokens)


@pytest.mark.parametrize("count", [10, 500])
def test_many_objects_to_choose_from_are_followed(vocabulary: Vocabulary, count: int) -> None:
    choices = [
        {"type": "object", "properties": {f"key{number}": {"type": "string"}}, "additionalProperties": False}
        for number in range(count)
    ]
    assert takes(json_grammar({"anyOf": choices}), f'{{"key{count - 1}": "some words"}}', vocabulary)


def test_many_optional_properties_are_followed(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {f"key{number}": {"type": "string"} for number in range(1000)}}
    assert takes(json_grammar(schema), '{"key3": "some words", "key999": ""}', vocabulary)


def test_many_words_to_choose_from_are_followed(vocabulary: Vocabulary) -> None:
    words = [f"word {number}" for number in range(1900)]
    assert takes(choice_grammar(words), words[-1], vocabulary)


def test_a_beginning_that_takes_too_long_to_follow_is_refused(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "START_SECONDS", -1.0)
    with pytest.raises(StepError, match="following them takes"):
        start_after(compile_grammar(Grammar("regex", "[a-z ]*"), vocabulary), vocabulary.encode(WORDS))
