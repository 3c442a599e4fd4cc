"""Grammars that llguidance runs: all kinds but kbnf."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from rnn_engine.errors import StepError
from rnn_engine.grammar.grammar import Grammar, GrammarError
from rnn_engine.grammar.json_schema import error_place, load_schema, with_spacing
from rnn_engine.grammar.vocabulary import Vocabulary
from rnn_engine.types import mask_words

_LIMITS: Final = LLParserLimits(
    max_lexer_states=50_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,  # a choice of 500 objects needs 5,000; an ambiguous grammar ever more, for ever longer
    verbose_errors=False,
)


class GuidanceMask:
    """The tokens that a grammar allows, one after another. See `rnn_engine.sampling.TokenMask`."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        """Takes over `matcher`."""
        self._matcher = matcher
        self._mask = np.empty(mask_words(vocab_size), np.uint32)
        self._place = self._mask.ctypes.data, self._mask.nbytes  # in memory; finding it out takes as long as a mask

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
    """A grammar that was compiled. May be used on several threads."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        """Raise GrammarError for a grammar that is wrong. Other threads run meanwhile."""
        self._size = vocabulary.size
        self._matcher = _compile(_source(grammar), vocabulary)
        if error := self._matcher.get_error():
            raise GrammarError(_message(grammar, error, vocabulary))

    def start(self) -> GuidanceMask:
        """Return what allows the tokens of a new text."""
        return GuidanceMask(self._matcher.deep_copy(), self._size)


def _compile(source: str, vocabulary: Vocabulary) -> LLMatcher:
    return LLMatcher(vocabulary.for_guidance, source, log_level=0, limits=_LIMITS)


def _source(grammar: Grammar) -> str:
    """Return `grammar` in the form that llguidance compiles."""
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
        raise GrammarError(f"it is no JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("expected a list of strings that is not empty")
    return choices


def _translate(text: str) -> str:
    """Return a grammar of llama.cpp in Lark."""
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
