"""Drafts of a text that was there before: what followed when the same tokens were last run from the same state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_PRIOR = 4.0  # tokens that what is expected of an earlier text counts for
_EXPECTED = 0.8  # the share of its tokens that come again


class EarlierText:
    """One text, and what followed it where an earlier request had all of it.

    It is asked for when nothing is known of what comes next: at first, where an earlier text ends, and where this one
    leaves it. Where there is none then, there will be none.
    """

    def __init__(self, find: Callable[[Sequence[int]], Sequence[int]]) -> None:
        """`find` returns what followed so many generated tokens, perhaps nothing."""
        self._find = find
        self._ahead: Sequence[int] = ()
        self._place = 0  # in it: what stands there is thought to come next
        self.is_over = False  # nothing will be foretold any more
        self._seen = 0  # tokens that were foretold
        self._right = 0  # those of them that came

    def extend(self, generated: Sequence[int], first: int) -> None:
        """Take in what was generated from number `first` on."""
        if self.is_over:
            return
        for token in generated[first:]:
            if self._place == len(self._ahead):
                break
            self._seen += 1
            if token != self._ahead[self._place]:
                self._ahead, self._place = (), 0
                break
            self._right += 1
            self._place += 1
        if self._place == len(self._ahead):
            self._ahead, self._place = self._find(generated), 0
            self.is_over = not self._ahead

    @property
    def foretells(self) -> bool:
        """Whether anything is known of what comes next."""
        return self._place < len(self._ahead)

    def draft(self, count: int) -> list[int]:
        """Return at most `count` of the tokens that are thought to come next; none where nothing is known."""
        return list(self._ahead[self._place : self._place + count])

    def outlook(self, count: int) -> tuple[int, float]:
        """Return how many of the next `count` tokens are likely enough, and their chance, as `Lookup` does."""
        return count, self.chance

    @property
    def chance(self) -> float:
        """The share of tokens that were foretold rightly, or would have been by experience."""
        return (self._right + _PRIOR * _EXPECTED) / (self._seen + _PRIOR)
