"""Bound what the tokens outside a ranking weigh, from the log-sum-exp of the row and its lowest candidate."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from rnn_engine.sampling.ranking import Ranking, Rest

Bounds: TypeAlias = tuple[float, float]
"""The least and the most that a quantity can be."""

ROUNDING = 1e-9  # widens bounds beyond what sums of V numbers in another order may differ by

# How far a runner's f32 log-sum-exp may be from the true one: a constant part, and one that grows with its size.
LOGSUMEXP_ERROR = (1e-5, 1e-6)


def bound_rest(ranking: Ranking, ranked_mass: float) -> Bounds:
    """Bound the mass of all tokens that are not ranked, in units of the first token's: exp(logit - logits[0]).

    `ranked_mass` is the mass of those that are ranked. At least one is.
    """
    rest = ranking.rest
    if rest is None:
        return 0.0, 0.0
    least, most = _bound_unread(ranking, rest, ranked_mass)
    top, lowest = ranking.logits.item(0), rest.row.logits.item(-1)
    if len(rest.unread):
        change = np.exp(rest.unread + (lowest - top)) - math.exp(lowest - top)
        gain = np.maximum(change, 0.0).sum() if rest.ceiling > lowest else 0.0
        least, most = max(least + float(change.sum() - gain), 0.0), most + float(gain)
    if len(rest.uncertain):
        uncertain = float(np.exp(rest.uncertain - top).sum())
        least, most = least + uncertain, most + uncertain
    return least, most


def _bound_unread(ranking: Ranking, rest: Rest, ranked_mass: float) -> Bounds:
    """Bound what tokens that were not read weigh before they are adjusted."""
    row, top = rest.row, ranking.logits.item(0)
    limit = (row.num_allowed - len(rest.known)) * math.exp(row.logits.item(-1) - top)  # of at most 1 each
    if row.allowed_logsumexp - top >= 700.0:  # exp overflows, where the top candidates were pushed very far down
        return 0.0, limit
    total = math.exp(row.allowed_logsumexp - top)
    error = total * (LOGSUMEXP_ERROR[0] + LOGSUMEXP_ERROR[1] * abs(row.allowed_logsumexp))
    known = ranked_mass if rest.known is ranking.logits else float(np.exp(rest.known - top).sum())
    return min(max(total - known - error, 0.0), limit), min(max(total - known + error, 0.0), limit)


def bound_powers(mass: Bounds, count: int, ceiling: float, temperature: float) -> Bounds:
    """Bound the sum of the (1 / temperature)-th powers of `count` numbers of this mass, each at most exp(ceiling).

    Of n numbers of sum m, each at most x, the a-th powers sum up to at least n (m/n)^a and at most m x^(a-1)
    where a >= 1, and the other way round where a <= 1 (the power mean inequality, and p^a <= p x^(a-1)).
    """
    if temperature <= 1.0:
        return widen((_power_of_even(mass[0], count, temperature), _power_of_uneven(mass[1], ceiling, temperature)))
    return widen((_power_of_uneven(mass[0], ceiling, temperature), _power_of_even(mass[1], count, temperature)))


def widen(bounds: Bounds) -> Bounds:
    """Allow for the rounding of sums."""
    return bounds[0] * (1.0 - ROUNDING), bounds[1] * (1.0 + ROUNDING)


def _power_of_even(mass: float, count: int, temperature: float) -> float:
    """Return what `count` equal numbers of sum `mass` sum up to when raised to 1 / temperature."""
    if mass == 0.0:
        return 0.0
    return math.exp(math.log(count) + math.log(mass / count) / temperature)


def _power_of_uneven(mass: float, ceiling: float, temperature: float) -> float:
    """Return the same for numbers that are either exp(ceiling) or nothing."""
    if mass == 0.0:
        return 0.0
    return math.exp(math.log(mass) + ceiling / temperature - ceiling)
