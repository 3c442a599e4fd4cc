"""The sampler of one sequence: its random numbers, its penalties, and the draw of each token.

It reads the whole row only where the candidates do not settle the draw, and then draws with the same number, so that
the token depends on the row, the parameters and the seed alone: not on how many candidates a runner returns.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rnn_engine.sampling.adjustments import Adjustments
from rnn_engine.sampling.nucleus import draw
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.ranking import Ranking, rank
from rnn_engine.sampling.rows import LogitRow

SORTED_FIRST = 4096  # of a whole row; sorting all of a large vocabulary takes several times longer


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
        """Draw a token from `row` and count it as generated."""
        uniform = self._random.random() if self._params.temperature > 0.0 else None
        for wider_row in _widening(row):
            ranking = rank(wider_row, self._adjustments)
            index = self._index(ranking, uniform)
            if index is not None:
                break
        else:
            raise AssertionError("a whole row settles every draw")
        token = int(ranking.ids[index])
        self._adjustments.generated(token)
        return Draw(token, float(ranking.raw[index]) - row.logsumexp)

    def _index(self, ranking: Ranking, uniform: float | None) -> int | None:
        if uniform is None:  # greedy
            return 0 if len(ranking.ids) else None
        return draw(ranking, self._params, uniform)


def _widening(row: LogitRow) -> Iterator[LogitRow]:
    """`row`, then the same with more candidates, at last with all of them."""
    yield row
    full = row.read_full()
    if len(full) > SORTED_FIRST:
        yield LogitRow.of_full(full, SORTED_FIRST)
    yield LogitRow.of_full(full, len(full))
