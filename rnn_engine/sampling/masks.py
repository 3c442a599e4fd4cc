"""Masks that allow some tokens of a vocabulary and rule out the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StepError
from rnn_engine.types import I32, mask_words, unpack_masks

Mask: TypeAlias = NDArray[np.uint32]
"""[ceil(V / 32)] where bit t % 32 of word t // 32 is set if token t is allowed. Bits from V on have no meaning."""


class TokenMask(Protocol):
    """Says before each token of one sequence which tokens it may be: a grammar, for one. For one thread."""

    @property
    def ended(self) -> bool:
        """Whether the text ends here, with reason `stop`. False before the first token."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens that come next whatever the model says, perhaps none; `accept` is called with each.

        They are not drawn, and all go through the model together. Asked before `next`, which is asked only where there
        is none. A mix of states does not ask, so `next` must lead to the same tokens.
        """
        ...

    def next(self) -> Mask | None:
        """Return the tokens that may come next, at least one; None allows all.

        The array must not change before `accept` is called. Where a call raises, its request alone ends.
        """
        ...

    def accept(self, token: int) -> None:
        """Go on to the place after `token`, which is forced, or was drawn from those that `next` allowed."""
        ...


class SequenceMask:
    """What is known of the next token of one sequence.

    `forced` are the tokens that come next, one after another, where these are not drawn. `current` is the mask of one
    that is drawn, and None where all tokens are allowed.
    """

    def __init__(
        self, source: TokenMask, vocab_size: int, ends: Collection[int] = (), *, may_force: bool = True
    ) -> None:
        """`ends` are tokens that end a text, too, wherever token 0 may. Where not `may_force`, all tokens are drawn.

        Raise StepError, as does `advance`, for a mask that does not fit the vocabulary or allows no token.
        """
        self._source = source
        self._vocab_size = vocab_size
        self._ends = frozenset(ends)
        self._added: frozenset[int] = frozenset()  # of them, to the current mask
        self._may_force = may_force
        self.forced: Sequence[int] = ()
        self.current: Mask | None = None
        self.advance()

    @property
    def ended(self) -> bool:
        """Whether no token follows the last one."""
        return self._source.ended

    def accept(self, token: int) -> None:
        """Take note of the next token; no mask is current then."""
        if token not in self._added:
            self._source.accept(token)
        self.current = None

    def advance(self) -> None:
        """Find out what may come after the last token."""
        self._added = frozenset()
        self.forced = self._source.forced() if self._may_force else ()
        if self.forced:
            return
        mask = self._source.next()
        if mask is not None:
            _check_mask(mask, self._vocab_size)
        self.current = mask if mask is None else self._with_ends(mask)

    def _with_ends(self, mask: Mask) -> Mask:
        """Return `mask` with the tokens that end a text, where it allows the end."""
        ends = self._ends if int(mask[0]) & 1 else ()
        self._added = frozenset(token for token in ends if not int(mask[token >> 5]) >> (token & 31) & 1)
        if not self._added:
            return mask
        extended = mask.copy()
        for token in self._added:
            extended[token >> 5] |= np.uint32(1 << (token & 31))
        return extended

    def for_last(self, num_rows: int) -> NDArray[np.uint32] | None:
        """Return masks [rows, ceil(V / 32)] of which the last is the current one and the others allow all tokens."""
        if self.current is None:
            return None
        masks = np.full((num_rows, len(self.current)), 2**32 - 1, np.uint32)
        masks[-1] = self.current
        return masks


def allowed_tokens(mask: Mask, vocab_size: int) -> I32:
    """Return the ids that `mask` allows, ascending."""
    return np.flatnonzero(unpack_masks(mask, vocab_size)).astype(np.int32)


def count_allowed(mask: Mask, vocab_size: int) -> int:
    """Return how many tokens `mask` allows."""
    count = int(np.bitwise_count(mask).sum())
    stray = int(mask[-1]) >> (vocab_size % 32) if vocab_size % 32 else 0
    return count - stray.bit_count()


def are_allowed(mask: Mask, tokens: I32) -> NDArray[np.bool_]:
    """Return for each of `tokens` whether `mask` allows it."""
    allowed: NDArray[np.bool_] = (mask[tokens >> 5] >> (tokens & 31).astype(np.uint32)) & 1 == 1
    return allowed


def _check_mask(mask: Mask, vocab_size: int) -> None:
    expected = (mask_words(vocab_size),)
    if mask.dtype != np.uint32 or mask.shape != expected:
        raise StepError(
            f"the mask of a token is {mask.dtype} of shape {mask.shape}; expected uint32 of shape {expected}"
        )
    last = int(mask[-1]) & ((1 << (vocab_size - 1) % 32 + 1) - 1)
    if last == 0 and mask[:-1].max(initial=0) == 0:
        raise StepError("the mask of a token allows no token")
