"""Grammars that constrain an answer's text, such as JSON schemas, and their compilation to token masks."""

from rnn_engine.grammar.compiled import Tag, Vocabulary, start_after, tagged_text
from rnn_engine.grammar.compiler import GrammarCompiler
from rnn_engine.grammar.grammar import Grammar, GrammarError, GrammarKind, choice_grammar, json_grammar, written_grammar

__all__ = [
    "Grammar",
    "GrammarCompiler",
    "GrammarError",
    "GrammarKind",
    "Tag",
    "Vocabulary",
    "choice_grammar",
    "json_grammar",
    "start_after",
    "tagged_text",
    "written_grammar",
]
