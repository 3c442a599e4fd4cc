"""Top-k, top-p and temperature, on a ranking that may be certain in its first part only.

Nucleus sampling is from Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), section 3.1. As in
ai00, the kept probabilities are raised to 1 / temperature after the cut, not before it.

Every quantity that depends on the uncertain rest is carried as a pair of bounds. The draw is made where both bounds
lead to the same token, which is then the token that the whole row leads to; otherwise there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rnn_engine.sampling.adjustments import F64
from rnn_engine.sampling.bounds import Bounds, bound_powers, bound_rest, widen
from rnn_engine.sampling.ranking import Ranking, Rest


class Nucleus:
    """Keeps the `top_k` likeliest tokens (0: all), then those before which at most `top_p` of the whole mass lies.

    It draws one of them with a chance in proportion to p^(1 / temperature); `temperature` is greater than 0.
    """

    num_uniforms = 1
    whole_row = False
    selection = None

    def __init__(self, top_p: float, top_k: int, temperature: float) -> None:
        self.top_p = top_p
        self.top_k = top_k
        self.temperature = temperature

    def draw(self, ranking: Ranking, uniforms: Sequence[float]) -> int | None:
        size = len(ranking.ids)
        if size == 0:
            return None
        scaled = ranking.logits - ranking.logits[0]
        mass: F64 = np.exp(scaled).cumsum()  # [S]
        weight = mass if self.temperature == 1.0 else _weigh(scaled, self.temperature)
        if ranking.rest is None:
            kept = self._count_kept(mass, mass.item(-1), size)
            return int(weight.searchsorted(uniforms[0] * weight.item(kept - 1), side="right"))
        least, most = self._bound_weight(ranking, ranking.rest, mass, weight)
        index = int(weight.searchsorted(uniforms[0] * least, side="right"))
        if index == size or (most != least and index != weight.searchsorted(uniforms[0] * most, side="right")):
            return None
        return index

    def drawn(self, ranking: Ranking, index: int) -> None:
        """Carries no state."""

    def _bound_weight(self, ranking: Ranking, rest: Rest, mass: F64, weight: F64) -> Bounds:
        """Bound the sum of p^(1/T) over the tokens that are kept."""
        size, ranked = len(mass), mass.item(-1)
        outside = bound_rest(ranking, ranked)
        total = widen((ranked + outside[0], ranked + outside[1]))
        fewest, greatest = (self._count_kept(mass, bound, size + rest.count) for bound in total)
        least, most = weight.item(min(fewest, size) - 1), weight.item(min(greatest, size) - 1)
        if greatest > size:
            weight_outside = self._bound_rest_weight(ranking, rest, ranked, outside, total)
            least += weight_outside[0] if fewest > size else 0.0
            most += weight_outside[1]
        return least, most

    def _count_kept(self, mass: F64, total: float, num_tokens: int) -> int:
        """Return how many tokens are kept if all weigh `total`; more than S stands for a part of the rest too."""
        by_mass = 1 + int(mass.searchsorted(self.top_p * total, side="right"))
        return min(by_mass, self.top_k or num_tokens, num_tokens)

    def _bound_rest_weight(self, ranking: Ranking, rest: Rest, ranked: float, outside: Bounds, total: Bounds) -> Bounds:
        """Bound the sum of p^(1/T) over those of the rest that are kept, where at least one may be."""
        size = len(ranking.ids)
        count = min(rest.count, (self.top_k or size + rest.count) - size)
        ceiling = rest.ceiling - ranking.logits.item(0)
        one = math.exp(ceiling)
        least = max(min(outside[0] * count / rest.count, self.top_p * total[0] - ranked), 0.0)
        most = max(min(outside[1], count * one, self.top_p * total[1] + one - ranked), 0.0)
        return bound_powers((least, most), count, ceiling, self.temperature)


def _weigh(scaled: F64, temperature: float) -> F64:
    """[S] cumulated p^(1/T) in units of the first."""
    with np.errstate(over="ignore"):  # next to no temperature: minus infinity is what is meant
        weight: F64 = np.exp(scaled / temperature).cumsum()
    return weight
