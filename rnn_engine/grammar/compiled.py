"""The compilation of a grammar for a vocabulary, and the token masks of grammars that the library kbnf runs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StepError
from rnn_engine.grammar.grammar import Grammar, GrammarError
from rnn_engine.grammar.guidance import GuidanceGrammar, GuidanceMask, fit_grammar
from rnn_engine.grammar.vocabulary import Vocabulary, kbnf
from rnn_engine.types import mask_words, unpack_masks

# Grammars in kbnf's language, which clients of ai00 send. A text ends once the grammar can end.


class KbnfMask:
    """A `rnn_engine.sampling.masks.TokenMask` of one text, for a grammar that the library kbnf runs."""

    def __init__(self, engine: kbnf.Engine, vocab_size: int) -> None:
        """Take ownership of `engine`, kbnf's state of one text: the caller must not use it any more."""
        self._engine = engine
        self._mask = np.zeros(mask_words(vocab_size), np.uint32)

    @property
    def ended(self) -> bool:
        ended: bool = self._engine.is_finished()
        return ended

    def forced(self) -> Sequence[int]:
        return ()  # the library does not report them

    def next(self) -> NDArray[np.uint32]:
        self._engine.compute_allowed_token_ids()
        self._engine.fill_torch_bitmask(self._mask.ctypes.data)
        return self._mask

    def accept(self, token: int) -> None:
        try:
            self._engine.try_accept_new_token(token)
        except ValueError as error:
            raise StepError(f"the grammar can't be followed further: {error}") from error

    def copy(self) -> KbnfMask:
        return KbnfMask(deepcopy(self._engine), 32 * len(self._mask))


class KbnfGrammar:
    """A grammar compiled by the library kbnf. May be used on several threads."""

    left_out: Sequence[str] = ()

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        """Compile `grammar` for `vocabulary`. Blocks all other Python threads. Raises GrammarError if it is invalid."""
        self._size = vocabulary.size
        try:
            self._engine = kbnf.Engine(grammar.text, vocabulary.for_kbnf)
        except ValueError as error:
            raise GrammarError(_with_place(grammar.text, str(error))) from error

    def start(self) -> KbnfMask:
        """Return the token mask of a new text that follows the grammar, before its first token."""
        return KbnfMask(deepcopy(self._engine), self._size)


def _with_place(text: str, message: str) -> str:
    """Return kbnf's error `message` with a line and column in place of the unread rest of the grammar `text`."""
    unread = re.search(r'errors: \[\("((?:[^"\\]|\\.)*)"', message)
    if unread is None:
        return message
    escaped = re.sub(r"\\u\{(\w+)\}", lambda match: f"\\U{match[1]:0>8}", unread[1])
    rest = len(re.sub(r"\\(?:U\w{8}|.)", "_", escaped))
    read = text[: len(text) - rest]
    line, column = read.count("\n") + 1, len(read) - (read.rfind("\n") + 1) + 1
    return f"it can't be parsed from line {line}, column {column} on: {text[len(read) : len(read) + 40]!r}"


CompiledGrammar: TypeAlias = GuidanceGrammar | KbnfGrammar

START_SECONDS: Final = 2.0  # of processor time that following the beginning of a text may take


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary) -> CompiledGrammar:
    """Return `grammar`, compiled for `vocabulary`, for any number of texts. Raises GrammarError if it is invalid."""
    if grammar.kind == "kbnf":
        return KbnfGrammar(grammar, vocabulary)
    return GuidanceGrammar(fit_grammar(grammar)[0], vocabulary)


def check_start(grammar: CompiledGrammar, vocab_size: int) -> None:
    """Raise GrammarError if no text can follow `grammar` up to its second token."""
    text = grammar.start()
    try:
        allowed = np.flatnonzero(unpack_masks(text.next(), vocab_size))
        if len(allowed) == 0:
            raise GrammarError("no text matches it")
        text.accept(allowed.item(-1))  # many limits are only met after the first token
        if not text.ended:
            text.next()
    except StepError as error:
        raise GrammarError(str(error)) from error


def start_after(grammar: CompiledGrammar, tokens: Sequence[int]) -> GuidanceMask | KbnfMask:
    """Return the grammar's token mask of a text that begins with `tokens`, advanced past them.

    Raises StepError if the grammar allows no such beginning, if the text ends with it, or if following it takes too
    long.
    """
    mask, begun = grammar.start(), time.thread_time()
    for token in tokens:
        mask.next()
        mask.accept(token)
        if (seconds := time.thread_time() - begun) > START_SECONDS:
            raise StepError(f"following them takes {seconds:.2g} s; at most {START_SECONDS:g} s are allowed")
    if mask.ended:
        raise StepError("the text of the grammar ends with them")
    return mask
