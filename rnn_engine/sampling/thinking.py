"""Keep what a model thinks before its answer within a budget, and a grammar away from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from rnn_engine.sampling.masks import Mask, TokenMask
from rnn_engine.types import mask_words


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thoughts with which a text begins. What comes after them is the answer, which a grammar may hold."""

    end: bytes  # the text that closes them
    closing: Sequence[int]  # tokens that say `end`
    budget: int | None = None  # tokens of thoughts, after which they are closed; None: as many as the model likes


class ThinkingMask:
    """Allows all tokens until the thoughts end, and then what the answer's mask allows. See `TokenMask`."""

    def __init__(
        self,
        thinking: Thinking,
        token_bytes: Callable[[int], bytes],
        vocab_size: int,
        answer: Callable[[], TokenMask] | None,
        ends: Collection[int] = (0,),
    ) -> None:
        """`answer` makes the mask of what comes after the thoughts; None allows all tokens there.

        With one, a text can't end among its thoughts: none of `ends` is allowed there.
        """
        self._thinking = thinking
        self._token_bytes = token_bytes
        self._vocab_size = vocab_size
        self._make_answer = answer
        self._answer: TokenMask | None = None
        self._num_tokens = 0
        self._tail = b""  # the end of the thoughts so far
        self._closing: list[int] | None = None  # what remains to be said of the closing, where it has begun
        self._thinks = True
        self._among_thoughts = None if answer is None else _all_but(ends, vocab_size)

    @property
    def ended(self) -> bool:
        return self._answer is not None and self._answer.ended

    def forced(self) -> Sequence[int]:
        if not self._thinks:
            return () if self._answer is None else self._answer.forced()
        return () if self._due() is None else tuple(self._closing or ())

    def next(self) -> Mask | None:
        if not self._thinks:
            return None if self._answer is None else self._answer.next()
        due = self._due()
        return self._among_thoughts if due is None else _only(due, self._vocab_size)

    def accept(self, token: int) -> None:
        if not self._thinks:
            if self._answer is not None:
                self._answer.accept(token)
            return
        self._num_tokens += 1
        if self._closing:
            del self._closing[0]
        self._tail = (self._tail + self._token_bytes(token))[-len(self._thinking.end) - 64 :]
        if self._closing == [] or (self._closing is None and self._thinking.end in self._tail):
            self._thinks = False
            self._answer = None if self._make_answer is None else self._make_answer()

    def copy(self) -> ThinkingMask:
        other = copy(self)
        other._closing = None if self._closing is None else list(self._closing)
        other._answer = None if self._answer is None else self._answer.copy()
        return other

    def _due(self) -> int | None:
        """Return the token that has to come next, where the budget is spent."""
        budget = self._thinking.budget
        if self._closing is None and budget is not None and self._num_tokens >= budget:
            self._closing = list(self._thinking.closing)
        return self._closing[0] if self._closing else None


def _all_but(tokens: Collection[int], vocab_size: int) -> Mask:
    mask: Mask = np.full(mask_words(vocab_size), 2**32 - 1, np.uint32)
    for token in tokens:
        mask[token >> 5] &= np.uint32(~(1 << (token & 31)) & (2**32 - 1))
    return mask


def _only(token: int, vocab_size: int) -> Mask:
    mask: Mask = np.zeros(mask_words(vocab_size), np.uint32)
    mask[token >> 5] = np.uint32(1 << (token & 31))
    return mask
