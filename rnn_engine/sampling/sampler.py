"""The sampler of one sequence: its random numbers, its penalties, and the draw of each token.

It reads the whole row only where the candidates do not settle the draw, and then draws with the same number, so that
the token depends on the row, the parameters and the seed alone: not on how many candidates a runner returns.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rnn_engine.errors import StepError
from rnn_engine.requests import SamplingParams
from rnn_engine.sampling.adjustments import Adjustments
from rnn_engine.sampling.nucleus import draw
from rnn_engine.sampling.ranking import Ranking, rank_candidates, rank_full
from rnn_engine.sampling.rows import LogitRow


def random_seed() -> int:
    """A seed that no one can foresee; small enough for readers of JSON that keep numbers as doubles."""
    return secrets.randbits(53)


@dataclass(frozen=True, slots=True)
class Draw:
    """A token, and its natural-log probability under the model, before penalties and bias."""

    token: int
    logprob: float


class Sampler:
    """Draws the tokens of one sequence, in order. `earlier` tokens count as seen by the penalties."""

    def __init__(self, params: SamplingParams, seed: int, earlier: Sequence[int] = ()) -> None:
        self._params = params
        self._adjustments = Adjustments(params, earlier)
        self._random = np.random.Generator(np.random.PCG64(seed))

    def draw(self, row: LogitRow) -> Draw:
        """Draw a token from `row` and count it as generated.

        Raises StepError where the row holds no probabilities: an infinite or undefined log-sum-exp.
        """
        if not math.isfinite(row.logsumexp):
            raise StepError(f"the model's logits have a log-sum-exp of {row.logsumexp}; expected a finite number")
        ranking, index = self._choose(row)
        chosen = Draw(int(ranking.ids[index]), float(ranking.raw[index]) - row.logsumexp)
        self._adjustments.generated(chosen.token)
        return chosen

    def _choose(self, row: LogitRow) -> tuple[Ranking, int]:
        """The ranking that settled the draw, and the index of the drawn token in it."""
        uniform = self._random.random() if self._params.temperature > 0.0 else None
        ranking = rank_candidates(row, self._adjustments)
        index = self._index(ranking, uniform)
        if index is None:
            ranking = rank_full(row.read_full(), self._adjustments)
            index = self._index(ranking, uniform)
        if index is None:
            raise StepError("the model's logits are not numbers")
        return ranking, index

    def _index(self, ranking: Ranking, uniform: float | None) -> int | None:
        if uniform is None:  # greedy
            return 0 if len(ranking.ids) else None
        return draw(ranking, self._params, uniform)
