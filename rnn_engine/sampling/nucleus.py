"""Top-k, top-p, temperature and the draw, on a ranking that may be certain in its first part only.

Every quantity that depends on the uncertain rest is carried as a pair of bounds. The draw is made where both bounds
lead to the same token, which is then the token that the whole row leads to; otherwise there is none.
"""

from __future__ import annotations

import math

import numpy as np

from rnn_engine.sampling.adjustments import F64
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.ranking import Ranking

ROUNDING = 1e-9  # widens bounds beyond what sums of V numbers in another order may differ by


def draw(ranking: Ranking, params: SamplingParams, uniform: float) -> int | None:
    """The index into the ranking that `uniform`, from [0, 1), falls on; None where the rest decides it."""
    if len(ranking.ids) == 0:
        return None
    scaled = ranking.logits - ranking.logits[0]
    mass: F64 = np.exp(scaled).cumsum()  # [S]
    weight = mass if params.temperature == 1.0 else _weigh(scaled, params.temperature)
    total = _widen(ranking, mass[-1] + ranking.rest_mass[0], mass[-1] + ranking.rest_mass[1])
    kept = _kept(ranking, mass, params, total[0]), _kept(ranking, mass, params, total[1])
    rest = _rest_weight(ranking, float(mass[-1]), params, total) if kept[1] > len(mass) else (0.0, 0.0)
    least = weight[min(kept[0], len(mass)) - 1] + (rest[0] if kept[0] > len(mass) else 0.0)
    most = weight[min(kept[1], len(mass)) - 1] + rest[1]
    index = int(weight.searchsorted(uniform * least, side="right"))
    if index == len(mass) or index != int(weight.searchsorted(uniform * most, side="right")):
        return None
    return index


def _weigh(scaled: F64, temperature: float) -> F64:
    """[S] cumulated p^(1/T) in units of the first."""
    with np.errstate(over="ignore"):  # next to no temperature: minus infinity is what is meant
        weight: F64 = np.exp(scaled / temperature).cumsum()
    return weight


def _kept(ranking: Ranking, mass: F64, params: SamplingParams, total: float) -> int:
    """How many tokens top-k and top-p keep if all weigh `total`; more than S stands for a part of the rest too."""
    size = len(mass) + ranking.rest_count
    by_mass = 1 + int(mass.searchsorted(params.top_p * total, side="right"))
    return min(by_mass, params.top_k or size, size)


def _rest_weight(
    ranking: Ranking, certain: float, params: SamplingParams, total: tuple[float, float]
) -> tuple[float, float]:
    """Bounds on the sum of p^(1/T) over those of the rest that are kept, where at least one may be.

    Of n numbers of sum m, each at most x, the a-th powers sum up to at least n (m/n)^a and at most m x^(a-1)
    where a >= 1, and the other way round where a <= 1.
    """
    size = len(ranking.ids) + ranking.rest_count
    count = min(ranking.rest_count, (params.top_k or size) - len(ranking.ids))
    ceiling = ranking.rest_ceiling - float(ranking.logits[0])
    one = math.exp(ceiling)
    least = min(ranking.rest_mass[0] * count / ranking.rest_count, params.top_p * total[0] - certain)
    most = min(ranking.rest_mass[1], count * one, params.top_p * total[1] + one - certain)
    least, most = max(least, 0.0), max(most, 0.0)
    if params.temperature <= 1.0:
        return _widen(ranking, _even(least, count, params.temperature), _uneven(most, ceiling, params.temperature))
    return _widen(ranking, _uneven(least, ceiling, params.temperature), _even(most, count, params.temperature))


def _even(mass: float, count: int, temperature: float) -> float:
    """What `count` equal numbers of sum `mass` sum up to when raised to 1 / temperature."""
    if mass == 0.0:
        return 0.0
    return math.exp(math.log(count) + math.log(mass / count) / temperature)


def _uneven(mass: float, ceiling: float, temperature: float) -> float:
    """The same for numbers that are either exp(ceiling) or nothing."""
    if mass == 0.0:
        return 0.0
    return math.exp(math.log(mass) + ceiling / temperature - ceiling)


def _widen(ranking: Ranking, least: float, most: float) -> tuple[float, float]:
    """Allow for rounding where there is a rest; without one the numbers are the whole row's own."""
    if ranking.rest_count == 0:
        return least, most
    return least * (1.0 - ROUNDING), most * (1.0 + ROUNDING)
