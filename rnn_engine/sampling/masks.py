"""Masks that allow some tokens of a vocabulary and rule out the others."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import I32

Mask: TypeAlias = NDArray[np.uint32]
"""[ceil(V / 32)] where bit t % 32 of word t // 32 is set if token t is allowed. Bits from V on have no meaning."""


class TokenMask(Protocol):
    """Says before each token of one sequence which tokens it may be: a grammar, for one. For one thread."""

    def next(self) -> Mask | None:
        """Return the tokens that may come next, at least one of them; None allows all. It may be reused by later calls.

        Where it raises, its request alone ends, with a StepError.
        """
        ...

    def accept(self, token: int) -> None:
        """Go on to the place after `token`, which was drawn from those that `next` allowed."""
        ...


def allowed_tokens(mask: Mask, vocab_size: int) -> I32:
    """Return the ids that `mask` allows, ascending."""
    return np.flatnonzero(_bits(mask, vocab_size)).astype(np.int32)


def count_allowed(mask: Mask, vocab_size: int) -> int:
    """Return how many tokens `mask` allows."""
    count = int(np.bitwise_count(mask).sum())
    stray = int(mask[-1]) >> (vocab_size % 32) if vocab_size % 32 else 0
    return count - stray.bit_count()


def are_allowed(mask: Mask, tokens: I32) -> NDArray[np.bool_]:
    """Return for each of `tokens` whether `mask` allows it."""
    allowed: NDArray[np.bool_] = (mask[tokens >> 5] >> (tokens & 31).astype(np.uint32)) & 1 == 1
    return allowed


def pack_mask(tokens: I32, vocab_size: int) -> Mask:
    """Return the mask that allows `tokens` alone."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    bits[tokens] = True
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def _bits(mask: Mask, vocab_size: int) -> NDArray[np.uint8]:
    return np.unpackbits(mask.astype("<u4").view(np.uint8), count=vocab_size, bitorder="little")
