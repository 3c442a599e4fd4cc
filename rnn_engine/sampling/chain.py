"""A sampler that applies a chain of steps, such as top-k and temperature. The default order is llama-server's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from rnn_engine.errors import InvalidRequestError
from rnn_engine.sampling.adjustments import F64, NEVER, Adjustments
from rnn_engine.sampling.ranking import Bounds, Places, Ranking, Rest, bound_powers, bound_rest, widen
from rnn_engine.types import I32

# The pool of tokens that the steps of a chain have kept so far.
#
# If the ranking holds only a part of the row, a pool is open: it begins with the tokens whose rank is certain, and more
# may follow them. A step that keeps none of the following tokens closes the pool. Its tokens are then the same as if
# the whole row had been ranked.


@dataclass(frozen=True, slots=True)
class Tail:
    """The tokens of a pool that are not ranked yet. All of them rank below the pool's ranked tokens."""

    rest: Rest
    count: int  # the most tokens that follow
    temperature: float = 1.0  # what the logits were divided by

    @property
    def ceiling(self) -> float:
        """An upper bound of the logits of the pool's unranked tokens, after division by the temperature."""
        return self.rest.ceiling / self.temperature


@dataclass(frozen=True, slots=True)
class Pool:
    """The n ranked tokens that steps have kept, and a tail for unranked ones; without it the pool is closed."""

    ranking: Ranking
    places: Places  # [n] in the ranking
    logits: F64  # [n] adjusted and divided by the temperature
    tail: Tail | None  # None if no tokens follow

    @staticmethod
    def of(ranking: Ranking) -> Pool:
        """Return the pool with which a chain starts. There must be at least one ranked token."""
        tail = None if ranking.rest is None else Tail(ranking.rest, ranking.rest.count)
        return Pool(ranking, np.arange(len(ranking.ids)), ranking.logits, tail)

    @property
    def ids(self) -> I32:
        return self.ranking.ids[self.places]

    def part(self, which: slice | Places) -> Pool:
        """Return a pool of only those ranked tokens that have the indices `which`, without a tail."""
        return Pool(self.ranking, self.places[which], self.logits[which], None)

    def first(self, count: int) -> Pool:
        """Return a pool of only the `count` likeliest tokens, without a tail."""
        return self.part(slice(count))

    def masses(self) -> F64:
        """Return the cumulative probabilities [n] of the ranked tokens, as multiples of the first token's."""
        masses: F64 = np.exp(self.logits - self.logits[0]).cumsum()
        return masses

    def bound_total(self, masses: F64) -> Bounds:
        """Return bounds of the pool's total probability, in multiples of the first token's; `masses` are its own."""
        total: float = masses.item(-1)
        if self.tail is None:
            return total, total
        logits, rest, count = self.ranking.logits, self.tail.rest, self.tail.count
        top = logits.item(0)
        least, most = bound_rest(self.ranking, float(np.exp(logits - top).cumsum()[-1]))
        ceiling = rest.ceiling - top
        least, most = least * count / rest.count, min(most, count * math.exp(ceiling))
        if self.tail.temperature != 1.0:
            least, most = bound_powers((least, most), count, ceiling, self.tail.temperature)
        return widen((total + least, total + most))


# The steps of llama-server's chain. Each removes some of the pool's tokens or changes their logits.
#
# The mathematics are those of llama.cpp's samplers of the same names, in f64. Every step sees the tokens that the
# steps before it kept, with probabilities that sum up to 1 over these.

RULED_OUT = NEVER / 1e6  # only tokens that must never be drawn have a logit below it
_NO_MASS = -800.0  # exp of it is 0
_RANGES_A_NAT = 128.0  # distances are counted by ranges, since sorting all takes far more time
_LEAST_TEMPERATURE = 1e-15  # separates any two different logits, and divides each without overflow


class ChainStep(Protocol):
    """The protocol of a step of a sampling chain, such as top-k, which removes tokens or changes their logits."""

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:
        """Apply the step to `pool`, the tokens kept so far, and return those that remain. There is at least one.

        `uniforms` are the random numbers of the draw. Return None if the result depends on tokens that are not in the
        pool.
        """


class Selection(ChainStep, Protocol):
    """The protocol of a chain step that can also choose tokens from a whole row of logits, before they are ranked."""

    def kept(self, logits: F64) -> Places:
        """Return the indices of the tokens that the step keeps of the logits [n], ascending. There is at least one."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The sampling step top-k, which keeps the `k` likeliest tokens."""

    k: int

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        if len(pool.logits) >= self.k:
            return pool.first(self.k)
        if pool.tail is None:
            return pool
        return replace(pool, tail=replace(pool.tail, count=min(self.k - len(pool.logits), pool.tail.count)))


@dataclass(frozen=True, slots=True)
class TopP:
    """The sampling step top-p, which keeps the likeliest tokens, just enough for a total probability of `p`."""

    p: float

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        masses = pool.masses()
        fewest, most = (1 + int(masses.searchsorted(self.p * total)) for total in pool.bound_total(masses))
        if pool.tail is not None and (fewest != most or most > len(masses)):
            return None
        return pool.first(fewest)


@dataclass(frozen=True, slots=True)
class MinP:
    """The sampling step min-p, which keeps the tokens with at least `p` times the probability of the likeliest one."""

    p: float

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        least = pool.logits.item(0) + math.log(self.p)
        if pool.tail is not None and least <= pool.tail.ceiling:
            return None
        return pool.first(max(int((-pool.logits).searchsorted(-least, side="right")), 1))


@dataclass(frozen=True, slots=True)
class TopNSigma:
    """The step top-n-sigma: keeps tokens at most `n` standard deviations of all logits below the greatest."""

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
    """The step of typical sampling, which keeps the tokens whose surprise is nearest to the entropy.

    It keeps as few as have together more than the probability `p`, and at most `most` tokens, unless that is None. From
    Meister et al., "Locally Typical Sampling" (2023).
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
    """The step XTC: with a chance of `probability`, keeps only the least likely of those above `threshold`."""

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
    """The sampling step that divides logits by a temperature. A temperature of 0 keeps only the likeliest token.

    If `span` is greater than 0, the temperature follows the entropy of the pool, between `temperature` - `span` (at
    least 0) and `temperature` + `span`. Its place in that range is the entropy, as a share of the greatest possible
    one, to the power of `exponent`.
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
            chances = _chances(pool)
            possible = chances[chances > 0.0]
            entropy = max(-float((possible * np.log(possible)).cumsum()[-1]), 0.0)  # in nats
            share = entropy / math.log(len(chances))
            least = max(temperature - self.span, 0.0)
            temperature = least + (temperature + self.span - least) * math.pow(share, self.exponent)
        if temperature == 0.0:
            return pool.first(1)
        temperature = max(temperature, _LEAST_TEMPERATURE)
        tail = pool.tail and replace(pool.tail, temperature=pool.tail.temperature * temperature)
        return replace(pool, logits=pool.logits / temperature, tail=tail)


def _chances(pool: Pool) -> F64:
    """Return the probabilities [n] of the tokens of `pool`, which must have no tail."""
    masses = np.exp(pool.logits - pool.logits[0])
    chances: F64 = masses / masses.cumsum()[-1]
    return chances


# Mirostat: keep the mean surprise of the drawn tokens near a target, by a limit that each drawn token changes.
#
# From Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity" (2021). The
# constants and the order of the steps are llama.cpp's; for `MirostatV2` with `ai00` they are ai00's.

_ESTIMATED = 100  # the first version estimates from this many tokens how fast the probabilities fall


class _Mirostat:
    """Mirostat's upper limit of the surprise of a token, in bits. Each drawn token changes the limit."""

    def __init__(self, tau: float, eta: float, most: float = math.inf) -> None:
        self._tau = tau
        self._eta = eta
        self._most = most
        self._limit = 2.0 * tau

    def drawn(self, probability: float) -> None:
        """Change the limit after a draw of this probability, by `eta` times `tau` minus the token's surprise."""
        self._limit = min(self._limit - self._eta * (-math.log2(probability) - self._tau), self._most)


class MirostatV1(_Mirostat):
    """The step of mirostat 1: keeps as many of the likeliest tokens as Zipf's law predicts for the limit."""

    def __init__(self, tau: float, eta: float, vocab_size: int) -> None:
        super().__init__(tau, eta)
        self._vocab_size = vocab_size

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        if pool.tail is not None and len(pool.logits) < _ESTIMATED:
            return None
        count = self._count(pool)
        return None if pool.tail is not None and count > len(pool.logits) else pool.first(count)

    def _count(self, pool: Pool) -> int:
        greatest = pool.logits[:_ESTIMATED]
        falls = -np.diff(greatest[greatest > RULED_OUT])
        steps = np.log1p(1.0 / np.arange(1, len(falls) + 1))
        exponent = float((steps * falls).sum() / (steps * steps).sum()) if len(falls) else 0.0
        try:
            excess = exponent - 1.0
            scale = excess * 2.0**self._limit / (1.0 - self._vocab_size**-excess)
            return max(min(int(scale ** (1.0 / exponent)), self._vocab_size), 1)
        except OverflowError:
            return self._vocab_size
        except (ZeroDivisionError, ValueError):  # the estimate has no value: the row is flat, or falls as 1/n
            return 1


class MirostatV2(_Mirostat):
    """The step of mirostat 2: keeps tokens up to the limit; with `ai00` one more, and at most 4 `tau`."""

    def __init__(self, tau: float, eta: float, *, ai00: bool = False) -> None:
        super().__init__(tau, eta, most=4.0 * tau if ai00 else math.inf)
        self._beyond = int(ai00)

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        masses = np.exp(pool.logits - pool.logits[0])
        least = 2.0**-self._limit
        within = ((-masses).searchsorted(-least * total, side="right") for total in pool.bound_total(masses.cumsum()))
        fewest, most = sorted(map(int, within))
        if pool.tail is not None and (fewest != most or fewest == len(masses)):
            return None
        return pool.first(max(fewest + self._beyond, 1))


ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama-server's order of the steps, which is also the one here."""

_LETTERS: Mapping[str, str] = MappingProxyType(dict(zip("edskypmxt", ORDER, strict=True)))
_OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "top-n-sigma": "top_n_sigma",
        "top-k": "top_k",
        "typical": "typ_p",
        "typical_p": "typ_p",
        "typical-p": "typ_p",
        "typ-p": "typ_p",
        "typ": "typ_p",
        "top-p": "top_p",
        "nucleus": "top_p",
        "min-p": "min_p",
        "temp": "temperature",
    }
)
_WITHOUT_EFFECT = frozenset({"adaptive_p", "adaptive-p", "a", "tfs_z", "tfs-z", "f"})  # fields that switch them on

_CUTTING: Sequence[type] = (TopK, TopP, MinP, Temperature)


class Cuts(NamedTuple):
    """Settings by which a device can draw: `top_k` 0 and `top_p` 1 keep all; `min_p` None is ai00's `Nucleus`."""

    top_k: int
    top_p: float
    min_p: float | None
    temperature: float


class Chain:
    """A sampler that applies `steps` and then `last`, if given, to a ranked row, and draws from what remains."""

    num_uniforms = 2  # for the draw, and for XTC

    def __init__(self, steps: Sequence[ChainStep], last: MirostatV1 | MirostatV2 | None = None) -> None:
        self._steps = tuple(steps)
        self._last = last
        self._all_steps = self._steps if last is None else (*self._steps, last)
        self._late = [step.adjustments for step in self._steps if isinstance(step, LateAdjustments)]
        self.whole_row = _needs_all(self._steps)
        first = self._steps[0] if self._steps else None
        self._first: Selection | None = first if isinstance(first, TopNSigma | TypicalP) else None

    @property
    def cuts(self) -> Cuts | None:
        """The settings with which a device draws like this chain; None if it has other steps, or another order."""
        places = [_CUTTING.index(type(step)) if type(step) in _CUTTING else -1 for step in self._steps]
        if self._last is not None or -1 in places or places != sorted(set(places)):
            return None
        top_k, top_p, min_p, temperature = 0, 1.0, None, 1.0
        for step in self._steps:
            match step:
                case TopK(k):
                    top_k = k
                case TopP(p):
                    top_p = p
                case MinP(p):
                    min_p = p
                case Temperature(temperature, 0.0):
                    pass
                case _:
                    return None
        if min_p is None:
            return None
        return Cuts(top_k, top_p, min_p, temperature) if temperature > 0.0 else Cuts(1, top_p, min_p, 1.0)

    @property
    def selection(self) -> Callable[[F64], Places] | None:
        return None if self._first is None else self._first.kept

    def draw(self, ranking: Ranking, uniforms: Sequence[float]) -> int | None:
        if len(ranking.ids) == 0:
            return None
        pool = self._apply(ranking, uniforms)
        if pool is None:
            return None
        masses = pool.masses()
        least, most = pool.bound_total(masses)
        index = int(masses.searchsorted(uniforms[0] * least, side="right"))
        if index == len(masses) or (most != least and index != masses.searchsorted(uniforms[0] * most, side="right")):
            return None
        return int(pool.places[index])

    def drawn(self, ranking: Ranking, index: int) -> None:
        if self._last is not None:
            self._last.drawn(self._probability(ranking, index))
        for adjustments in self._late:
            adjustments.generated(int(ranking.ids[index]))
            adjustments.begin_draw()

    def _apply(self, ranking: Ranking, uniforms: Sequence[float]) -> Pool | None:
        pool: Pool | None = Pool.of(ranking)
        for step in self._all_steps[1:] if ranking.is_selection else self._all_steps:
            if pool is None:
                break
            pool = step(pool, uniforms)
        return pool

    def _probability(self, ranking: Ranking, index: int) -> float:
        pool = self._apply(ranking, (0.0, 1.0))
        assert pool is not None, "the draw was settled"
        masses = np.exp(pool.logits - pool.logits[0])
        return float(masses[pool.places == index][0] / masses.cumsum()[-1])


class LateAdjustments:
    """The step that applies penalties if a client's order puts other steps, which don't see these, before it."""

    def __init__(self, adjustments: Adjustments) -> None:
        self.adjustments = adjustments
        adjustments.begin_draw()

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None:  # noqa: ARG002
        if pool.tail is not None:
            return None
        logits = self.adjustments.adjusted(pool.ids, pool.logits)
        order = np.argsort(-logits, kind="stable")
        return Pool(pool.ranking, pool.places[order], logits[order], None)


def parse_order(value: object) -> tuple[str, ...]:
    """Return the steps of `ORDER` that a client lists by names, or letters. Raises InvalidRequestError."""
    names = list(value) if isinstance(value, str) else value
    known = {**_LETTERS, **_OTHER_NAMES, **{name: name for name in ORDER}}
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidRequestError("samplers", value, _allowed())
    for name in names:
        if name not in known and name not in _WITHOUT_EFFECT:
            raise InvalidRequestError("samplers", name, _allowed())
    return tuple(known[name] for name in names if name in known)


def _allowed() -> str:
    return f"a list of {', '.join(ORDER)}, or a string of their letters {''.join(_LETTERS)}"


def _needs_all(steps: Sequence[ChainStep]) -> bool:
    """Return True if a chain's step needs the logits of all tokens, and no step before it removes tokens."""
    for step in steps:
        if isinstance(step, TopNSigma | TypicalP) or (isinstance(step, Temperature) and step.span > 0.0):
            return True
        if isinstance(step, TopK | TopP | MinP):
            return False
    return False
