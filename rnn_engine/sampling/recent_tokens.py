"""The tokens that a sequence has lately had."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence


class RecentTokens:
    """The last `size` tokens of a sequence and how often each occurs; -1 is all of them."""

    def __init__(self, size: int, tokens: Sequence[int]) -> None:
        self._size = size
        kept = tokens if size < 0 else tokens[max(len(tokens) - size, 0) :]
        self._queue: deque[int] | None = None if size < 0 else deque(kept)
        self.counts = Counter(kept)

    def append(self, token: int) -> int | None:
        """Add a token; return one that occurs no more."""
        self.counts[token] += 1
        if self._queue is None:
            return None
        self._queue.append(token)
        if len(self._queue) <= self._size:
            return None
        oldest = self._queue.popleft()
        self.counts[oldest] -= 1
        if self.counts[oldest]:
            return None
        del self.counts[oldest]
        return oldest
