"""Compile a grammar, whatever its kind, for one vocabulary."""

from __future__ import annotations

from typing import TypeAlias

from rnn_engine.grammar.grammar import Grammar
from rnn_engine.grammar.guidance import GuidanceGrammar
from rnn_engine.grammar.kbnf_grammar import KbnfGrammar
from rnn_engine.grammar.vocabulary import Vocabulary

CompiledGrammar: TypeAlias = GuidanceGrammar | KbnfGrammar


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary) -> CompiledGrammar:
    """Return `grammar`, ready for any number of texts. Raises GrammarError where it is wrong."""
    return (KbnfGrammar if grammar.kind == "kbnf" else GuidanceGrammar)(grammar, vocabulary)
