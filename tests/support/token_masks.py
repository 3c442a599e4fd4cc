"""Token masks for tests."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from rnn_engine.sampling.masks import Mask
from rnn_engine.types import I32


def pack_masks(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return masks [rows, ceil(V / 32)] of `allowed` [rows, V], with bits set beyond the vocabulary."""
    padding = -allowed.shape[1] % 32
    padded = np.pad(allowed, ((0, 0), (0, padding)), constant_values=True)
    return np.packbits(padded, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def pack_mask(tokens: I32, vocab_size: int) -> Mask:
    """Return the mask that allows only `tokens`, with bits set beyond the vocabulary."""
    allowed = np.zeros((1, vocab_size), np.bool_)
    allowed[0, tokens] = True
    mask: Mask = pack_masks(allowed)[0]
    return mask


class Residues:
    """A mask that allows tokens with the remainder r when divided by 5; r is the number of odd tokens so far, mod 5."""

    ended = False

    def __init__(self, vocab_size: int, all_at: int | None = None) -> None:
        """All tokens are allowed at the place `all_at`, counted from 0."""
        self.accepted: list[int] = []
        self._vocab_size = vocab_size
        self._all_at = all_at

    @property
    def remainder(self) -> int:
        return sum(token % 2 for token in self.accepted) % 5

    def forced(self) -> tuple[int, ...]:
        return ()

    def next(self) -> Mask | None:
        if len(self.accepted) == self._all_at:
            return None
        return pack_mask(np.arange(self.remainder, self._vocab_size, 5, dtype=np.int32), self._vocab_size)

    def accept(self, token: int) -> None:
        assert len(self.accepted) == self._all_at or token % 5 == self.remainder, "a token that is not allowed"
        self.accepted.append(token)

    def copy(self) -> Residues:
        return deepcopy(self)


class Forms(Residues):
    """A mask that forces some tokens after a drawn 3, and one token after a 4. The `end`-th 9 ends the text."""

    FORCED = (7, 1, 2)

    def __init__(self, vocab_size: int, end: int = 3) -> None:
        super().__init__(vocab_size)
        self._end = end
        self._due: list[int] = []

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self.accepted.count(9) == self._end

    def forced(self) -> tuple[int, ...]:
        return tuple(self._due)

    def next(self) -> Mask | None:
        assert not self._due, "asked for the mask of a token that is not drawn"
        assert not self.ended
        return None if len(self.accepted) % 4 == 3 else pack_mask(np.array([3, 4, 5, 8, 9], np.int32), self._vocab_size)

    def accept(self, token: int) -> None:
        self.accepted.append(token)
        if self._due:
            assert self._due.pop(0) == token, "a token that does not follow"
            if not self._due and self.accepted[-4:] == [4, *self.FORCED]:
                self._due = [5]
        elif token in (3, 4):
            self._due = list(self.FORCED)
