"""Find the positions in a list of tokens that belong to places in their text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from rnn_engine.interface import EngineLike


def token_positions(engine: EngineLike, tokens: Sequence[int], offsets: Sequence[int]) -> tuple[int, ...]:
    """Return for each offset in bytes how many of `tokens` lie wholly before it."""
    sizes = {token: len(engine.detokenize((token,))) for token in set(tokens)}
    ends = list(accumulate(sizes[token] for token in tokens))
    return tuple(bisect_right(ends, offset) for offset in offsets)
