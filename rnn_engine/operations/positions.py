"""Find the positions in a list of tokens that belong to places in their text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

from rnn_engine.interface import EngineLike

NO_SIZES: Mapping[int, int] = MappingProxyType({})


def token_positions(
    engine: EngineLike, tokens: Sequence[int], offsets: Sequence[int], sizes: Mapping[int, int] = NO_SIZES
) -> tuple[int, ...]:
    """Return for each offset in bytes how many of `tokens` lie wholly before it.

    `sizes` has the lengths of the tokens that the text spells in another way than their bytes say: special ones.
    """
    lengths = {token: len(engine.detokenize((token,))) for token in set(tokens)} | dict(sizes)
    ends = list(accumulate(lengths[token] for token in tokens))
    return tuple(bisect_right(ends, offset) for offset in offsets)
