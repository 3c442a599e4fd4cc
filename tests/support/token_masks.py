"""A token mask to test with."""

from __future__ import annotations

import numpy as np

from rnn_engine.sampling import Mask
from rnn_engine.sampling.masks import pack_mask


class Residues:
    """Allows the tokens that leave the remainder r when divided by 5, where r counts up with every odd token."""

    def __init__(self, vocab_size: int, all_at: int | None = None) -> None:
        """`all_at` is the number of the token, from 0 on, for which all are allowed."""
        self.accepted: list[int] = []
        self._vocab_size = vocab_size
        self._all_at = all_at

    @property
    def remainder(self) -> int:
        return sum(token % 2 for token in self.accepted) % 5

    def next(self) -> Mask | None:
        if len(self.accepted) == self._all_at:
            return None
        return pack_mask(np.arange(self.remainder, self._vocab_size, 5, dtype=np.int32), self._vocab_size)

    def accept(self, token: int) -> None:
        assert len(self.accepted) == self._all_at or token % 5 == self.remainder, "a token that is not allowed"
        self.accepted.append(token)
