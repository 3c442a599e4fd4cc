"""Compile a grammar, whatever its kind, for one vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rnn_engine.errors import StepError
from rnn_engine.grammar.grammar import Grammar
from rnn_engine.grammar.guidance import GuidanceGrammar, GuidanceMask
from rnn_engine.grammar.kbnf_grammar import KbnfGrammar, KbnfMask
from rnn_engine.grammar.vocabulary import Vocabulary

CompiledGrammar: TypeAlias = GuidanceGrammar | KbnfGrammar


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary) -> CompiledGrammar:
    """Return `grammar`, ready for any number of texts. Raises GrammarError where it is wrong."""
    return (KbnfGrammar if grammar.kind == "kbnf" else GuidanceGrammar)(grammar, vocabulary)


def start_after(grammar: CompiledGrammar, tokens: Sequence[int]) -> GuidanceMask | KbnfMask:
    """Return what allows the tokens of a text that begins with `tokens`. Raises StepError where none does."""
    mask = grammar.start()
    for token in tokens:
        mask.next()
        mask.accept(token)
    if mask.ended:
        raise StepError("the text of the grammar has ended")
    return mask
