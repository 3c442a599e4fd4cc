"""What is added to single tokens' logits before a draw: the client's bias less the penalties for repeating.

Holds only the tokens that have a bias or have been seen; knows neither rows nor probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.sampling.params import SamplingParams

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]


class Adjustments:
    """A sorted table token -> bias, penalty, seen.

    `earlier` are tokens that count as seen before the first draw, oldest first: each adds `presence_penalty` once,
    and at every sight `frequency_penalty` decayed by its distance from the last.
    """

    def __init__(self, params: SamplingParams, earlier: Sequence[int] = ()) -> None:
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._decay = params.penalty_decay
        self.tokens: I64 = np.array(sorted(params.logit_bias), np.int64)  # [A] ascending
        self._bias: F64 = np.array([params.logit_bias[token] for token in sorted(params.logit_bias)], np.float64)  # [A]
        self._penalty: F64 = np.zeros(len(self.tokens))  # [A]
        self._seen: NDArray[np.bool_] = np.zeros(len(self.tokens), np.bool_)  # [A]
        if self._penalises:
            for distance, token in enumerate(reversed(earlier)):
                self._see(token, self._frequency * self._decay**distance)

    @property
    def values(self) -> F64:
        """[A] what is added to each token's logit."""
        return self._bias - self._penalty

    def generated(self, token: int) -> None:
        """Decay every penalty by one token, then count `token` as seen."""
        if self._penalises:
            self._penalty *= self._decay
            self._see(token, self._frequency)

    @property
    def _penalises(self) -> bool:
        return self._presence != 0.0 or self._frequency != 0.0

    def _see(self, token: int, frequency: float) -> None:
        place = int(np.searchsorted(self.tokens, token))
        if place == len(self.tokens) or self.tokens[place] != token:
            self.tokens = np.insert(self.tokens, place, token)
            self._bias = np.insert(self._bias, place, 0.0)
            self._penalty = np.insert(self._penalty, place, 0.0)
            self._seen = np.insert(self._seen, place, False)
        if not self._seen[place]:
            self._seen[place] = True
            self._penalty[place] += self._presence
        self._penalty[place] += frequency
