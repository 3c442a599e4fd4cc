"""Random numbers as a pure function of a seed and a place, which the host and a device compute alike.

Philox4x32-10 is from Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011): ten rounds turn a key of 64
bits, here the seed, and a counter of 128 bits into four words. philox.wgsl is the same function.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.sampling.adjustments import F64

_ROUNDS: Final = 10
_MULTIPLIERS: Final = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS: Final = np.arange(_ROUNDS, dtype=np.uint64)[:, np.newaxis, np.newaxis] * np.array(
    [[0x9E3779B9], [0xBB67AE85]], np.uint64
)
_WORD: Final = np.uint64(2**32 - 1)
_HALF: Final = np.uint64(32)


def philox(seeds: NDArray[np.uint64], counters: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the four words [4, N], each below 2^32, of seeds [N] or [1] and counters [4, N]."""
    keys = (np.stack((seeds & _WORD, seeds >> _HALF)) + _KEY_STEPS) & _WORD  # [_ROUNDS, 2, N]
    even, odd = counters[0::2].astype(np.uint64), counters[1::2].astype(np.uint64)
    for key in keys:
        products = even * _MULTIPLIERS
        even = products[::-1] >> _HALF
        even ^= odd
        even ^= key
        odd = products[::-1] & _WORD
    return np.stack((even[0], odd[0], even[1], odd[1]))


def uniforms(seeds: NDArray[np.uint64], tokens: NDArray[np.integer], kinds: NDArray[np.integer] | int = 0) -> F64:
    """Return numbers from [0, 1) of 53 bits, [N]: for each seed, or the one seed, one for a token's place in its text.

    `kinds` tells the random numbers of one token apart, where a draw takes several.
    """
    counters = np.zeros((4, len(tokens)), np.uint32)
    counters[0] = tokens
    counters[1] = kinds
    words = philox(seeds, counters)
    numbers: F64 = ((words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))) * 2.0**-53
    return numbers


def uniforms_from(seed: int, first: int, count: int, num_kinds: int) -> list[float]:
    """Return the random numbers of `count` tokens from the place `first` on: those of all kinds of each, in a row.

    They are in one flat list, since a list a token is one more object that the garbage collector walks through.
    """
    places = np.repeat(np.arange(first, first + count), num_kinds)
    kinds = np.tile(np.arange(num_kinds), count)
    numbers: list[float] = uniforms(np.array([seed], np.uint64), places, kinds).tolist()
    return numbers
