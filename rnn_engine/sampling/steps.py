"""The steps of llama-server's chain: each takes some of the tokens that are left away, or changes their logits.

The mathematics are those of llama.cpp's samplers of the same names, in f64. Every step sees the tokens that the steps
before it left, with probabilities that sum up to 1 over these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from rnn_engine.sampling.adjustments import F64, NEVER
from rnn_engine.sampling.pool import Pool
from rnn_engine.sampling.ranking import Places

RULED_OUT = NEVER / 1e6  # no logit is under it but those of tokens that are never to be drawn
_NO_MASS = -800.0  # exp of it is 0
_RANGES_A_NAT = 128.0  # distances are counted by ranges, since sorting all takes far more time
_LEAST_TEMPERATURE = 1e-15  # parts any two logits, and divides each without overflow


class Step(Protocol):
    """One step of a chain."""

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:
        """Return what is left of `pool`, at least one token; None where tokens that are not in it decide that."""
        ...


class Selection(Step, Protocol):
    """A step that looks at all tokens, and takes some of them whatever their order."""

    def kept(self, logits: F64) -> Places:
        """Return the places of the tokens that are kept of `logits` [n], ascending; at least one."""
        ...


@dataclass(frozen=True, slots=True)
class TopK:
    """Keeps the `k` likeliest tokens."""

    k: int

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        if len(pool.logits) >= self.k:
            return pool.first(self.k)
        if pool.tail is None:
            return pool
        return replace(pool, tail=replace(pool.tail, count=min(self.k - len(pool.logits), pool.tail.count)))


@dataclass(frozen=True, slots=True)
class TopP:
    """Keeps the likeliest tokens until they have the probability `p` together."""

    p: float

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        masses = pool.masses()
        fewest, most = (1 + int(masses.searchsorted(self.p * total)) for total in pool.bound_total(masses))
        if pool.tail is not None and (fewest != most or most > len(masses)):
            return None
        return pool.first(fewest)


@dataclass(frozen=True, slots=True)
class MinP:
    """Keeps the tokens that have at least `p` times the probability of the likeliest."""

    p: float

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        least = pool.logits.item(0) + math.log(self.p)
        if pool.tail is not None and least <= pool.tail.ceiling:
            return None
        return pool.first(max(int((-pool.logits).searchsorted(-least, side="right")), 1))


@dataclass(frozen=True, slots=True)
class TopNSigma:
    """Keeps the tokens whose logit is at most `n` standard deviations of all logits under the greatest."""

    n: float

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        return None if pool.tail is not None else pool.part(self.kept(pool.logits))

    def kept(self, logits: F64) -> Places:
        possible = logits[logits > RULED_OUT]
        if len(possible) == 0:
            return np.arange(len(logits))
        return np.flatnonzero(logits >= logits.max() - self.n * float(possible.std()))


@dataclass(frozen=True, slots=True)
class TypicalP:
    """Keeps the tokens whose surprise is nearest to the entropy, until they have more than the probability `p`.

    It keeps at most `most` of them, where that is not None. From Meister et al., "Locally Typical Sampling" (2023).
    """

    p: float
    most: int | None = None

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        return None if pool.tail is not None else pool.part(self.kept(pool.logits))

    def kept(self, logits: F64) -> Places:
        scaled = logits - logits.max()
        np.maximum(scaled, _NO_MASS, out=scaled)
        masses = np.exp(scaled)
        total = float(masses.sum())
        scaled -= float((masses * scaled).sum()) / total  # no dot product, which waits for threads of its own
        distances = np.abs(scaled, out=scaled)  # of surprise and entropy
        ranges = (distances * _RANGES_A_NAT).astype(np.intp)
        mass_within = np.bincount(ranges, masses).cumsum()
        last = int(mass_within[:-1].searchsorted(self.p * total, side="right"))  # range in which those kept end
        if self.most is not None:
            last = min(last, int(np.bincount(ranges).cumsum().searchsorted(self.most)))
        kept, edge = ranges < last, np.flatnonzero(ranges == last)
        edge = edge[np.argsort(distances[edge], kind="stable")]
        wanted = self.p * total - (mass_within.item(last - 1) if last > 0 else 0.0)
        count = 1 + int(masses[edge].cumsum().searchsorted(wanted, side="right"))
        if self.most is not None:
            count = min(count, self.most - int(np.count_nonzero(kept)))
        kept[edge[:count]] = True
        return np.flatnonzero(kept)


@dataclass(frozen=True, slots=True)
class Xtc:
    """With a chance of `probability`, takes away all tokens of at least `threshold` but the least likely of them."""

    probability: float
    threshold: float

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:
        if uniforms[1] >= self.probability:
            return pool
        if pool.tail is not None:
            return None
        above = int((-_chances(pool)).searchsorted(-self.threshold, side="right"))
        return pool.part(slice(max(above - 1, 0), None))


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divides the logits by a temperature; 0 keeps the likeliest token alone.

    Where `span` is greater than 0 the temperature is between `temperature` - `span` and `temperature` + `span`: its
    place there is the entropy of what is left, in units of the greatest there could be, to the power of `exponent`.
    """

    temperature: float
    span: float = 0.0
    exponent: float = 1.0

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        temperature = self.temperature
        if self.span > 0.0:
            if pool.tail is not None:
                return None
            if len(pool.logits) == 1:
                return pool
            temperature = self._dynamic(pool)
        if temperature == 0.0:
            return pool.first(1)
        temperature = max(temperature, _LEAST_TEMPERATURE)
        tail = pool.tail and replace(pool.tail, temperature=pool.tail.temperature * temperature)
        return replace(pool, logits=pool.logits / temperature, tail=tail)

    def _dynamic(self, pool: Pool) -> float:
        chances = _chances(pool)
        share = _entropy(chances) / math.log(len(chances))
        least = max(self.temperature - self.span, 0.0)
        return least + (self.temperature + self.span - least) * math.pow(share, self.exponent)


def _chances(pool: Pool) -> F64:
    """Return [n] the probabilities of a closed pool."""
    masses = np.exp(pool.logits - pool.logits[0])
    chances: F64 = masses / masses.cumsum()[-1]
    return chances


def _entropy(chances: F64) -> float:
    """Return the entropy in nats; a chance of 0 adds nothing to it."""
    possible = chances[chances > 0.0]
    return max(-float((possible * np.log(possible)).cumsum()[-1]), 0.0)
