"""Compile a grammar, whatever its kind, for one vocabulary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from rnn_engine.errors import StepError
from rnn_engine.grammar.grammar import Grammar, GrammarError
from rnn_engine.grammar.guidance import GuidanceGrammar, GuidanceMask
from rnn_engine.grammar.kbnf_grammar import KbnfGrammar, KbnfMask
from rnn_engine.grammar.vocabulary import Vocabulary
from rnn_engine.types import unpack_masks

CompiledGrammar: TypeAlias = GuidanceGrammar | KbnfGrammar

START_SECONDS: Final = 2.0  # of the processor's time that the beginning of a text may take


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary) -> CompiledGrammar:
    """Return `grammar`, ready for any number of texts. Raises GrammarError where it is wrong."""
    return (KbnfGrammar if grammar.kind == "kbnf" else GuidanceGrammar)(grammar, vocabulary)


def check_start(grammar: CompiledGrammar, vocab_size: int) -> None:
    """Raise GrammarError where no text begins as the grammar says, or one can't be followed to its second token."""
    text = grammar.start()
    try:
        allowed = np.flatnonzero(unpack_masks(text.next(), vocab_size))
        if len(allowed) == 0:
            raise GrammarError("no text is as it says")
        text.accept(allowed.item(-1))  # many limits are only met behind the first token
        if not text.ended:
            text.next()
    except StepError as error:
        raise GrammarError(str(error)) from error


def start_after(grammar: CompiledGrammar, tokens: Sequence[int]) -> GuidanceMask | KbnfMask:
    """Return what allows the tokens of a text that begins with `tokens`.

    Raises StepError where none does, or where finding that out takes too long.
    """
    mask, begun = grammar.start(), time.thread_time()
    for token in tokens:
        mask.next()
        mask.accept(token)
        if (seconds := time.thread_time() - begun) > START_SECONDS:
            raise StepError(f"following it takes {seconds:.2g} s, and {START_SECONDS:g} s are allowed")
    if mask.ended:
        raise StepError("the text of the grammar has ended")
    return mask
