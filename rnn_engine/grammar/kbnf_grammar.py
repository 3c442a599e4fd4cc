"""Grammars in kbnf's language, which clients of ai00 send. A text ends as soon as it is what the grammar says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StepError
from rnn_engine.grammar.grammar import Grammar, GrammarError
from rnn_engine.grammar.kbnf_library import kbnf
from rnn_engine.grammar.vocabulary import Vocabulary
from rnn_engine.types import mask_words


class KbnfMask:
    """The tokens that a grammar allows, one after another. See `rnn_engine.sampling.TokenMask`."""

    def __init__(self, engine: kbnf.Engine, vocab_size: int) -> None:
        """Takes over `engine`."""
        self._engine = engine
        self._mask = np.zeros(mask_words(vocab_size), np.uint32)

    @property
    def ended(self) -> bool:
        ended: bool = self._engine.is_finished()
        return ended

    def forced(self) -> Sequence[int]:
        return ()  # the library does not say

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
    """A grammar that was compiled. May be used on several threads."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        """Raise GrammarError for a grammar that is wrong. No other thread runs meanwhile."""
        self._size = vocabulary.size
        try:
            self._engine = kbnf.Engine(grammar.text, vocabulary.for_kbnf)
        except ValueError as error:
            raise GrammarError(_with_place(grammar.text, str(error))) from error

    def start(self) -> KbnfMask:
        """Return what allows the tokens of a new text."""
        return KbnfMask(deepcopy(self._engine), self._size)


def _with_place(text: str, message: str) -> str:
    """Return kbnf's `message` with the line and column instead of all of `text` that was not read."""
    unread = re.search(r'errors: \[\("((?:[^"\\]|\\.)*)"', message)
    if unread is None:
        return message
    escaped = re.sub(r"\\u\{(\w+)\}", lambda match: f"\\U{match[1]:0>8}", unread[1])
    rest = len(re.sub(r"\\(?:U\w{8}|.)", "_", escaped))
    read = text[: len(text) - rest]
    line, column = read.count("\n") + 1, len(read) - (read.rfind("\n") + 1) + 1
    return f"it can't be read from line {line}, column {column} on: {text[len(read) : len(read) + 40]!r}"
