"""Rank the candidates of many rows as far as that is certain: `ranking.py` and `bounds.py` over arrays.

N rows, K candidates each. Masses are in units of the first ranked token's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.sampling.adjustments import F64
from rnn_engine.sampling.bounds import LOGSUMEXP_ERROR
from rnn_engine.sampling.rows import RunRows
from rnn_engine.types import I32, Readout

Flags: TypeAlias = NDArray[np.bool_]
Places: TypeAlias = NDArray[np.signedinteger]

_FARTHEST = 700.0  # from the first logit to the log-sum-exp; exp overflows beyond


@dataclass(slots=True, eq=False)
class Candidates:
    """What a step has read of N rows. Beyond the tokens that a row's mask allows, logits are minus infinity."""

    ids: I32  # [N, K]
    logits: F64  # [N, K] the model's, greatest first
    logsumexp: F64  # [N] over the whole row
    allowed_logsumexp: F64  # [N] over the allowed tokens
    unread: F64  # [N] or []: how many allowed tokens there are at most beyond the candidates; 0 if there are none

    @staticmethod
    def of(rows: Sequence[RunRows]) -> Candidates:
        """Return the candidates of each run's last row, all of one step."""
        readout = rows[0].readout
        numbers = np.array([each.first + each.count - 1 for each in rows])
        logsumexp = readout.logsumexp[numbers].astype(np.float64)
        logits = readout.logits[numbers].astype(np.float64)
        allowed_logsumexp, unread = _count_unread(rows, readout, numbers, logsumexp, logits[:, -1])
        return Candidates(readout.ids[numbers], logits, logsumexp, allowed_logsumexp, unread)


def _count_unread(
    rows: Sequence[RunRows], readout: Readout, numbers: Places, logsumexp: F64, lowest: F64
) -> tuple[F64, F64]:
    """Return `allowed_logsumexp` and `unread` of `Candidates`; `lowest` [N] are the logits of the last candidates."""
    most = float(rows[0].vocab_size - readout.ids.shape[1])
    is_masked = np.array([each.allowed is not None for each in rows])
    if not is_masked.any():
        return logsumexp, np.array(most)
    allowed_logsumexp: F64 = np.where(is_masked, readout.allowed_logsumexp[numbers], logsumexp)
    return allowed_logsumexp, np.where(is_masked & (lowest == -np.inf), 0.0, most)


@dataclass(slots=True, eq=False)
class RankedRows:
    """N rows of which each first tokens are ranked for certain; the rest, if any, all come after them."""

    order: Places | None  # [N, K] the candidates, likeliest first; None where that is their own order
    scaled: F64  # [N, K] their adjusted logits less the first one; minus infinity where the rank is not certain
    size: Places  # [N] or []: how many are certain
    rest: F64  # [N] or []: how many tokens there are beyond those
    least_rest: F64  # [N] the least and the most that these weigh
    most_rest: F64  # [N]
    ceiling: F64  # [N] no adjusted logit of theirs is above it, less the first one
    is_known: Flags  # [N] whether all that could be found out


def rank_candidates(candidates: Candidates) -> RankedRows:
    """Rank candidates to which nothing is added."""
    logits = candidates.logits
    top = logits[:, 0]
    scaled = logits - top[:, np.newaxis]
    known = np.exp(scaled).sum(axis=1)
    least_rest, most_rest, is_known = _bound_unread(candidates, top, known, scaled[:, -1])
    size = np.array(logits.shape[1])
    return RankedRows(None, scaled, size, candidates.unread, least_rest, most_rest, scaled[:, -1], is_known)


def rank_penalised(candidates: Candidates, penalties: F64, others: F64) -> RankedRows:
    """Rank candidates off which `penalties` [N, K] are taken; `others` [N] bounds those of all unread tokens together.

    None is negative. Rows with equal logits after that are left unknown, as are those of which nothing is certain.
    """
    logits = candidates.logits - penalties
    order = np.argsort(-logits, axis=1, kind="stable")
    logits = np.take_along_axis(logits, order, axis=1)
    top, lowest = logits[:, 0], candidates.logits[:, -1]
    is_complete = np.broadcast_to(candidates.unread == 0.0, top.shape)
    is_penalised = penalties.any(axis=1)
    is_certain = (logits > lowest[:, np.newaxis]) | (is_complete | ~is_penalised)[:, np.newaxis]
    scaled = logits - top[:, np.newaxis]
    mass = np.exp(scaled)
    uncertain = np.where(is_certain, 0.0, mass).sum(axis=1)
    known = np.exp(candidates.logits - top[:, np.newaxis]).sum(axis=1)
    ceiling = lowest - top
    least_rest, most_rest, is_known = _bound_unread(candidates, top, known, ceiling)
    least_rest = np.maximum(least_rest - others * np.exp(ceiling), 0.0)  # for 1 - exp(-x) <= x
    size = is_certain.sum(axis=1)
    has_equals = is_penalised & ((logits[:, 1:] == logits[:, :-1]) & (logits[:, 1:] > -np.inf)).any(axis=1)
    return RankedRows(
        order,
        np.where(is_certain, scaled, -np.inf),
        size,
        candidates.unread + logits.shape[1] - size,
        least_rest + uncertain,
        most_rest + uncertain,
        ceiling,
        is_known & ~has_equals & (size > 0),
    )


def _bound_unread(candidates: Candidates, top: F64, known: F64, lowest: F64) -> tuple[F64, F64, Flags]:
    """Bound [N] what unread tokens weigh before they are adjusted, and say of which rows that can be done.

    `known` is what the candidates weigh, and `lowest` the logit of the last one less `top`, that of the first token.
    """
    gap = candidates.allowed_logsumexp - top
    total = np.exp(gap)
    error = total * (LOGSUMEXP_ERROR[0] + LOGSUMEXP_ERROR[1] * np.abs(candidates.allowed_logsumexp))
    limit = candidates.unread * np.exp(lowest)
    unread = total - known
    least: F64 = np.minimum(np.maximum(unread - error, 0.0), limit)
    most: F64 = np.minimum(np.maximum(unread + error, 0.0), limit)
    return least, most, np.abs(gap) < _FARTHEST
