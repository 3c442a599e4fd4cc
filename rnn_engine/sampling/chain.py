"""A sampler that is a list of steps, and the order of llama-server's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from rnn_engine.errors import InvalidRequestError
from rnn_engine.sampling.adjustments import F64, Adjustments
from rnn_engine.sampling.pool import Pool
from rnn_engine.sampling.ranking import Places, Ranking
from rnn_engine.sampling.steps import MinP, Selection, Step, Temperature, TopK, TopNSigma, TopP, TypicalP

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
    """How the likeliest tokens are kept: 0 and 1 keep all; a `temperature` of 0 is the likeliest one alone."""

    top_k: int
    top_p: float
    min_p: float | None
    temperature: float


class Moving(Protocol):
    """A step that carries state from token to token; the last one of a chain."""

    def __call__(self, pool: Pool, uniforms: Sequence[float]) -> Pool | None: ...

    def drawn(self, probability: float) -> None:
        """Take note of the probability with which the token was drawn that was."""
        ...


class Chain:
    """Applies `steps` and then `last`, where there is one, and draws by the probabilities that are left."""

    num_uniforms = 2  # for the draw, and for XTC

    def __init__(self, steps: Sequence[Step], last: Moving | None = None) -> None:
        self._steps = tuple(steps)
        self._last = last
        self._all_steps = self._steps if last is None else (*self._steps, last)
        self._late = [step.adjustments for step in self._steps if isinstance(step, LateAdjustments)]
        self.whole_row = _needs_all(self._steps)
        first = self._steps[0] if self._steps else None
        self._first: Selection | None = first if isinstance(first, TopNSigma | TypicalP) else None

    @property
    def cuts(self) -> Cuts | None:
        """Its steps, where they are top-k, top-p, min-p and a temperature, or some of these, in that order."""
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
                case Temperature(degree, span, _):
                    temperature = degree
                    if span > 0.0:
                        return None
        return Cuts(top_k, top_p, min_p, temperature)

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
    """Penalties that a client's list puts behind other steps, which do not see them."""

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
    """Return the names of `ORDER` that a list of names or a string of letters means.

    Raises InvalidRequestError, which names what is allowed.
    """
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


def _needs_all(steps: Sequence[Step]) -> bool:
    """Return whether a step needs all tokens before another one has taken some away."""
    for step in steps:
        if isinstance(step, TopNSigma | TypicalP) or (isinstance(step, Temperature) and step.span > 0.0):
            return True
        if isinstance(step, TopK | TopP | MinP):
            return False
    return False
