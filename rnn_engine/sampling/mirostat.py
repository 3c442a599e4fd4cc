"""Mirostat: keep the surprise of the tokens near a target, by a limit that every token moves.

From Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity" (2021); the constants
and the order of the steps are llama.cpp's, and of `MirostatV2` with `ai00` ai00's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rnn_engine.sampling.pool import Pool
from rnn_engine.sampling.steps import RULED_OUT

_ESTIMATED = 100  # tokens of which the first version estimates how fast the probabilities fall


class MirostatV1:
    """Keeps as many of the likeliest tokens as should have the wanted surprise by Zipf's law."""

    def __init__(self, tau: float, eta: float, vocab_size: int) -> None:
        self._limit = _Limit(tau, eta)
        self._vocab_size = vocab_size

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        if pool.tail is not None and len(pool.logits) < _ESTIMATED:
            return None
        count = self._count(pool)
        return None if pool.tail is not None and count > len(pool.logits) else pool.first(count)

    def drawn(self, probability: float) -> None:
        self._limit.drawn(probability)

    def _count(self, pool: Pool) -> int:
        greatest = pool.logits[:_ESTIMATED]
        falls = -np.diff(greatest[greatest > RULED_OUT])
        steps = np.log1p(1.0 / np.arange(1, len(falls) + 1))
        exponent = float((steps * falls).sum() / (steps * steps).sum()) if len(falls) else 0.0
        try:
            excess = exponent - 1.0
            scale = excess * 2.0**self._limit.surprise / (1.0 - self._vocab_size**-excess)
            return max(min(int(scale ** (1.0 / exponent)), self._vocab_size), 1)
        except OverflowError:
            return self._vocab_size
        except (ZeroDivisionError, ValueError):  # the estimate has no value: the row is flat, or falls as 1/n
            return 1


class MirostatV2:
    """Leaves out the tokens that are more surprising than the limit; of those that are, `ai00` keeps the first.

    With `ai00` the limit is at most four times `tau`.
    """

    def __init__(self, tau: float, eta: float, *, ai00: bool = False) -> None:
        self._limit = _Limit(tau, eta, most=4.0 * tau if ai00 else math.inf)
        self._beyond = int(ai00)

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        masses = np.exp(pool.logits - pool.logits[0])
        least = 2.0**-self._limit.surprise
        within = ((-masses).searchsorted(-least * total, side="right") for total in pool.bound_total(masses.cumsum()))
        fewest, most = sorted(map(int, within))
        if pool.tail is not None and (fewest != most or fewest == len(masses)):
            return None
        return pool.first(max(fewest + self._beyond, 1))

    def drawn(self, probability: float) -> None:
        self._limit.drawn(probability)


class _Limit:
    """How surprising a token may be, in bits."""

    def __init__(self, tau: float, eta: float, most: float = math.inf) -> None:
        self._tau = tau
        self._eta = eta
        self._most = most
        self.surprise = 2.0 * tau

    def drawn(self, probability: float) -> None:
        """Move the limit by how far a token's surprise is from the target; `probability` is that of the draw."""
        self.surprise = min(self.surprise - self._eta * (-math.log2(probability) - self._tau), self._most)
