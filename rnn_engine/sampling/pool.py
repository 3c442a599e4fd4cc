"""The tokens that the steps of a chain have left over of a ranking.

Where the ranking holds a part of the row only, a pool is open: it begins with the tokens that are certain, and more
may follow them. A step that keeps none of those that follow closes it; its tokens are then those that the whole row
leads to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rnn_engine.sampling.adjustments import F64
from rnn_engine.sampling.bounds import Bounds, bound_powers, bound_rest, widen
from rnn_engine.sampling.ranking import Places, Ranking, Rest
from rnn_engine.types import I32


@dataclass(frozen=True, slots=True)
class Tail:
    """What follows the tokens of an open pool."""

    rest: Rest
    count: int  # how many tokens there are at most
    temperature: float = 1.0  # what the logits were divided by

    @property
    def ceiling(self) -> float:
        """No logit is above it, after temperature."""
        return self.rest.ceiling / self.temperature


@dataclass(frozen=True, slots=True)
class Pool:
    """The n tokens that are left, at least one, likeliest first. An open pool has all tokens of its ranking."""

    ranking: Ranking
    places: Places  # [n] in the ranking
    logits: F64  # [n] adjusted and divided by the temperature
    tail: Tail | None  # None where they are all

    @staticmethod
    def of(ranking: Ranking) -> Pool:
        """Return the tokens of a ranking that has some."""
        tail = None if ranking.rest is None else Tail(ranking.rest, ranking.rest.count)
        return Pool(ranking, np.arange(len(ranking.ids)), ranking.logits, tail)

    @property
    def ids(self) -> I32:
        return self.ranking.ids[self.places]

    def part(self, which: slice | Places) -> Pool:
        """Return some of the tokens, alone."""
        return Pool(self.ranking, self.places[which], self.logits[which], None)

    def first(self, count: int) -> Pool:
        """Return the `count` likeliest tokens alone."""
        return self.part(slice(count))

    def masses(self) -> F64:
        """Return [n] cumulated probabilities in units of the first one's."""
        masses: F64 = np.exp(self.logits - self.logits[0]).cumsum()
        return masses

    def bound_total(self, masses: F64) -> Bounds:
        """Bound what all tokens weigh, those that follow too, in units of the first; `masses` are the pool's own."""
        total: float = masses.item(-1)
        if self.tail is None:
            return total, total
        least, most = self._bound_tail(self.tail)
        return widen((total + least, total + most))

    def _bound_tail(self, tail: Tail) -> Bounds:
        logits, rest, count = self.ranking.logits, tail.rest, tail.count
        top = logits.item(0)
        least, most = bound_rest(self.ranking, float(np.exp(logits - top).cumsum()[-1]))
        ceiling = rest.ceiling - top
        mass = least * count / rest.count, min(most, count * math.exp(ceiling))
        return mass if tail.temperature == 1.0 else bound_powers(mass, count, ceiling, tail.temperature)
