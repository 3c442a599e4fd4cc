"""The tokens that a sequence has lately had."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class RecentTokens:
    """The last `size` tokens of a sequence and how often each occurs; -1 is all of them."""

    def __init__(self, size: int, tokens: Sequence[int]) -> None:
        self.size = size
        kept = tokens if size < 0 else tokens[max(len(tokens) - size, 0) :]
        self._queue: deque[int] | None = None if size < 0 else deque(kept)
        self.counts = Counter(kept)

    def places(self, vocab_size: int) -> NDArray[np.uint32]:
        """Return [V] at which of these places each token was seen last, from 1 on; 0 is none.

        Of all tokens since the beginning, the places are not kept, and each is at the first.
        """
        places = np.zeros(vocab_size, np.uint32)
        if self._queue is None:
            places[np.fromiter(self.counts, np.intp, len(self.counts))] = 1
        else:
            for place, token in enumerate(self._queue, 1):
                places[token] = place
        return places

    def append(self, token: int) -> int | None:
        """Add a token; return one that occurs no more."""
        self.counts[token] += 1
        if self._queue is None:
            return None
        self._queue.append(token)
        if len(self._queue) <= self.size:
            return None
        oldest = self._queue.popleft()
        self.counts[oldest] -= 1
        if self.counts[oldest]:
            return None
        del self.counts[oldest]
        return oldest
