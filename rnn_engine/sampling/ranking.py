"""Rank a row's tokens as far as that is certain, and bound what the others can weigh.

A row's candidates are its K greatest logits, so a token outside them lies at or under the lowest candidate, and
the log-sum-exp tells how much all of them weigh together. Bias and penalties move tokens: a candidate that falls
under that line, or an outsider that may rise over it, ends the part of the ranking that is certain.
Knows nothing of top-k, top-p or temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rnn_engine.sampling.adjustments import F64, I64, Adjustments
from rnn_engine.sampling.rows import LogitRow

# How far a runner's f32 log-sum-exp may be from the true one: a constant part, and one that grows with its size.
LOGSUMEXP_ERROR = (1e-5, 1e-6)

NOTHING: F64 = np.empty(0)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The S tokens whose rank is certain, likeliest first, and bounds on the rest, which all come after them.

    Masses are in units of the first token's: exp(logit - logits[0]).
    """

    ids: I64  # [S]
    raw: F64  # [S] the model's logits
    logits: F64  # [S] adjusted, descending, equal ones by ascending id
    rest_count: int
    rest_ceiling: float  # no adjusted logit of the rest is above it
    rest_mass: tuple[float, float]  # the least and the most that the rest weighs


def rank(row: LogitRow, adjustments: Adjustments) -> Ranking:
    """Rank the candidates of a row as far as the unread tokens can't come between them; perhaps none of them."""
    ids = row.ids.astype(np.int64)  # [K]
    raw = row.logits.astype(np.float64)
    if len(adjustments.tokens) == 0:
        rest_count, lowest = row.vocab_size - len(ids), float(raw[-1])
        return Ranking(ids, raw, raw, rest_count, lowest, _rest_mass(row, raw, raw, len(ids), NOTHING))
    added, unread = _split(adjustments, ids)
    logits = raw + added
    order = np.lexsort((ids, -logits))
    ids, raw, logits = ids[order], raw[order], logits[order]
    ceiling = float(row.logits[-1]) + max(0.0, float(unread.max(initial=0.0)))
    size = _certain(raw, logits, float(row.logits[-1]), ceiling) if len(ids) < row.vocab_size else len(ids)
    mass = _rest_mass(row, raw, logits, size, unread) if size else (0.0, math.inf)
    return Ranking(ids[:size], raw[:size], logits[:size], row.vocab_size - size, ceiling, mass)


def _certain(raw: F64, logits: F64, lowest: float, ceiling: float) -> int:
    """How many of the sorted candidates come before every token that is not read."""
    certain = logits > ceiling
    if ceiling == lowest:  # an unread token that equals the lowest candidate has a higher id than those not moved
        certain |= (logits == lowest) & (raw == lowest)
    return len(certain) if certain.all() else int(certain.argmin())


def _split(adjustments: Adjustments, ids: I64) -> tuple[F64, F64]:
    """What is added to each of `ids` [K], and what is added to tokens that are not among them."""
    values = adjustments.values
    place = np.minimum(np.searchsorted(adjustments.tokens, ids), len(values) - 1)
    found = adjustments.tokens[place] == ids
    outside = np.ones(len(values), np.bool_)
    outside[place[found]] = False
    return np.where(found, values[place], 0.0), values[outside]


def _rest_mass(row: LogitRow, raw: F64, logits: F64, size: int, unread: F64) -> tuple[float, float]:
    """The least and the most that all tokens but the first `size` weigh."""
    if size == row.vocab_size:
        return 0.0, 0.0
    top = logits[0]
    lowest = math.exp(row.logits[-1] - top)  # at most 1: the first token's rank is certain
    ceiling = (row.vocab_size - len(raw)) * lowest
    least, most = 0.0, ceiling
    if row.logsumexp - top < 700.0:  # else exp overflows, where the top candidates were pushed very far down
        total = math.exp(row.logsumexp - top)
        error = total * (LOGSUMEXP_ERROR[0] + LOGSUMEXP_ERROR[1] * abs(row.logsumexp))
        outside = total - float(np.exp(raw - top).sum())
        least = min(max(outside - error, 0.0), ceiling)
        most = min(max(outside + error, 0.0), ceiling)
    if len(unread):
        change = np.exp(row.logits[-1] - top + unread) - lowest
        least = max(least + float(change[change < 0].sum()), 0.0)
        most += float(change[change > 0].sum())
    uncertain = float(np.exp(logits[size:] - top).sum()) if size < len(logits) else 0.0
    return uncertain + least, uncertain + most
