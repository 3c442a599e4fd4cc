"""Sampling for many sequences at once, by array operations on the candidates of one step.

This is `Nucleus` in arrays over all rows, with the same bounds and the same results.
A sequence draws by itself if the candidates of its row do not settle the draw, or if it has another sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.sampling.adjustments import F64, Adjustments
from rnn_engine.sampling.ranking import LOGSUMEXP_ERROR, ROUNDING
from rnn_engine.sampling.rows import RunRows
from rnn_engine.sampling.sequence_sampler import Draw, SequenceSampler, uniforms
from rnn_engine.types import I32, Readout

# Rank the candidates of many rows as far as that is certain: `ranking.py` over arrays.
#
# N rows, K candidates each. Masses are in units of the first ranked token's.

Flags: TypeAlias = NDArray[np.bool_]
Places: TypeAlias = NDArray[np.signedinteger]

_FARTHEST = 700.0  # the most between the first logit and the log-sum-exp; exp overflows beyond it


@dataclass(slots=True, eq=False)
class Candidates:
    """The candidates of N logit rows of a step: the ids and logits of each row's K likeliest tokens.

    If a row's mask allows fewer than K tokens, the other logits are -inf.
    """

    ids: I32  # [N, K]
    logits: F64  # [N, K] the model's, greatest first
    logsumexp: F64  # [N] over the whole row
    allowed_logsumexp: F64  # [N] over the allowed tokens
    unread: F64  # [N] or []: the most allowed tokens that there may be beyond the candidates

    @staticmethod
    def of(rows: Sequence[RunRows]) -> Candidates:
        """Return the candidates of the last logit row of each token run. All runs must be of one step."""
        readout = rows[0].readout
        numbers = np.array([each.first + each.count - 1 for each in rows])
        logsumexp = readout.logsumexp[numbers].astype(np.float64)
        logits = readout.logits[numbers].astype(np.float64)
        allowed_logsumexp, unread = _count_unread(rows, readout, numbers, logsumexp, logits[:, -1])
        return Candidates(readout.ids[numbers], logits, logsumexp, allowed_logsumexp, unread)


def _count_unread(
    rows: Sequence[RunRows], readout: Readout, numbers: Places, logsumexp: F64, lowest: F64
) -> tuple[F64, F64]:
    """Return the fields `allowed_logsumexp` and `unread` of the `Candidates` of these rows.

    `lowest` [N] is each row's last candidate's logit.
    """
    most = float(rows[0].vocab_size - readout.ids.shape[1])
    is_masked = np.array([each.allowed is not None for each in rows])
    if not is_masked.any():
        return logsumexp, np.array(most)
    allowed_logsumexp: F64 = np.where(is_masked, readout.allowed_logsumexp[numbers], logsumexp)
    return allowed_logsumexp, np.where(is_masked & (lowest == -np.inf), 0.0, most)


@dataclass(slots=True, eq=False)
class RankedRows:
    """The tokens of N logit rows, each row ranked as far as the order is certain. Its other tokens rank below.

    These other tokens are called the rest.
    """

    order: Places | None  # [N, K] the candidates, likeliest first; None if they are in that order already
    scaled: F64  # [N, K] their adjusted logits less the first one; minus infinity if the rank is not certain
    size: Places  # [N] or []: how many ranks are certain
    rest: F64  # [N] or []: the most tokens that there may be beyond those
    least_rest: F64  # [N] the least mass of the rest
    most_rest: F64  # [N] the most
    ceiling: F64  # [N] an upper bound of the rest's adjusted logits, less the first one
    is_known: Flags  # [N] whether the row could be ranked and bounded


def rank_candidates(candidates: Candidates) -> RankedRows:
    """Rank the candidates of logit rows that have no penalties."""
    logits = candidates.logits
    top = logits[:, 0]
    scaled = logits - top[:, np.newaxis]
    known = np.exp(scaled).sum(axis=1)
    least_rest, most_rest, is_known = _bound_unread(candidates, top, known, scaled[:, -1])
    size = np.array(logits.shape[1])
    return RankedRows(None, scaled, size, candidates.unread, least_rest, most_rest, scaled[:, -1], is_known)


def rank_penalised(candidates: Candidates, penalties: F64, others: F64) -> RankedRows:
    """Rank the candidates of logit rows after subtracting `penalties` [N, K] from their logits.

    `others` [N] is an upper bound of the sum of all unread tokens' penalties. No penalty may be negative.
    A row is left unknown if it has equal logits afterwards, or if no rank is certain.
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
    least_rest = np.maximum(least_rest - others * np.exp(ceiling), 0.0)  # since 1 - exp(-x) <= x
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
    """Return the least and the greatest mass [N] that each row's unread tokens have before penalties, and flags [N].

    The flags say if the bounds are valid. `known` is the mass of the candidates. `top` is the logit of the first token.
    `lowest` is the logit of the last candidate less `top`.
    """
    gap = candidates.allowed_logsumexp - top
    total = np.exp(gap)
    error = total * (LOGSUMEXP_ERROR[0] + LOGSUMEXP_ERROR[1] * np.abs(candidates.allowed_logsumexp))
    limit = candidates.unread * np.exp(lowest)
    unread = total - known
    least: F64 = np.minimum(np.maximum(unread - error, 0.0), limit)
    most: F64 = np.minimum(np.maximum(unread + error, 0.0), limit)
    return least, most, np.abs(gap) < _FARTHEST


FEWEST = 6  # rows; drawing from fewer is quicker one by one

_AHEAD = 64  # tokens whose random numbers are made at once, for all sequences that have used half of theirs
_ALL = 2**31 - 1  # top_k that keeps every token
_NOWHERE = -_AHEAD  # before every text


@dataclass(frozen=True, slots=True, eq=False)
class _Nuclei:
    """The settings for nucleus sampling of N sequences, as arrays."""

    samplers: Sequence[SequenceSampler]
    slots: Places  # [N]
    seeds: NDArray[np.uint64]  # [N]
    top_k: Places  # [N]
    least_p: F64  # [N] top_p, lowered by the rounding of sums
    most_p: F64  # [N] top_p, raised by it
    temperature: F64  # [N]
    is_plain: bool  # all temperatures are 1
    penalties: list[Adjustments]  # [N], or empty if no sequence penalises

    @staticmethod
    def of(samplers: Sequence[SequenceSampler]) -> _Nuclei:
        nuclei = [sampler.nucleus for sampler in samplers if sampler.nucleus is not None]
        top_p = np.array([nucleus.top_p for nucleus in nuclei])
        temperature = np.array([nucleus.temperature for nucleus in nuclei])
        penalises = any(sampler.adjustments.penalises for sampler in samplers)
        return _Nuclei(
            samplers,
            np.array([sampler.slot for sampler in samplers], np.intp),
            np.array([sampler.seed for sampler in samplers], np.uint64),
            np.array([nucleus.top_k or _ALL for nucleus in nuclei]),
            top_p * (1.0 - ROUNDING),
            top_p * (1.0 + ROUNDING),
            temperature,
            bool((temperature == 1.0).all()),
            [sampler.adjustments for sampler in samplers] if penalises else [],
        )


class JointDraws:
    """Draws the next tokens of many sequences together, with array operations. Not thread-safe."""

    def __init__(self, vocab_size: int, num_slots: int) -> None:
        self._vocab_size = vocab_size
        self._penalties: F64 = np.zeros((num_slots, vocab_size))  # pages that are never written take no memory
        self._penalising: dict[int, Adjustments] = {}  # by slot: the adjustments whose penalties are in its row
        self._uniforms: F64 = np.zeros((num_slots, _AHEAD))  # random numbers of a slot's tokens from `_first` on
        self._first: Places = np.full(num_slots, _NOWHERE)
        self._nuclei = _Nuclei.of(())  # of the latest draw: usually the next step draws for the same sequences

    def join(self, slot: int, sampler: SequenceSampler) -> None:
        """Register the sampler of the sequence in `slot`, in place of any that was registered for the slot before."""
        if (before := self._penalising.pop(slot, None)) is not None:
            before.clear()
        sampler.slot = slot
        self._first[slot] = _NOWHERE
        if sampler.nucleus is not None and sampler.adjustments.penalises:
            self._penalising[slot] = sampler.adjustments
            sampler.adjustments.keep_in(self._penalties[slot])

    def leave(self, sampler: SequenceSampler) -> None:
        """Remove the sampler of a sequence, which must be registered. `join` may register it again."""
        adjustments = self._penalising.pop(sampler.slot, None)
        if adjustments is not None:
            adjustments.keep_in(np.zeros(self._vocab_size))
        sampler.leave_device()
        self._nuclei = _Nuclei.of(())  # it may join in another slot

    def draw(self, samplers: Sequence[SequenceSampler], rows: Sequence[RunRows]) -> list[Draw | None]:
        """Draw the next token of each of several sequences, and record it as generated; return the draws.

        `samplers` are those of the sequences, which must have joined. Each draws from the last row of its run in
        `rows`, which must be of one step. An item is None if the sequence has to draw by `SequenceSampler.draw`.
        """
        draws: list[Draw | None] = [None] * len(samplers)
        joining = [place for place, sampler in enumerate(samplers) if sampler.nucleus is not None]
        if len(joining) < FEWEST:
            return draws
        if len(joining) < len(samplers):
            samplers, rows = [samplers[place] for place in joining], [rows[place] for place in joining]
        if self._nuclei.samplers != samplers:
            self._nuclei = _Nuclei.of(samplers)
        numbers = self._find_uniforms()
        candidates = Candidates.of(rows)
        with np.errstate(all="ignore"):  # rows without probabilities are not settled
            ranked = self._rank(candidates)
            index, settled = self._draw(ranked, numbers)
        each = np.arange(len(samplers))
        index = index if ranked.order is None else ranked.order[each, index]
        tokens = candidates.ids[each, index].tolist()
        logprobs = (candidates.logits[each, index] - candidates.logsumexp).tolist()
        for which in np.flatnonzero(settled).tolist():
            samplers[which].settle(tokens[which])
            draws[joining[which]] = Draw(tokens[which], logprobs[which])
        for which in np.flatnonzero(~settled).tolist():
            samplers[which].left_open(numbers.item(which))
        return draws

    def _find_uniforms(self) -> F64:
        """Return the random numbers [N] for the next draw of each of the drawing sequences."""
        slots = self._nuclei.slots
        index = np.array([sampler.index for sampler in self._nuclei.samplers])
        used = index - self._first[slots]
        if used.max() >= _AHEAD:
            due = np.flatnonzero(used >= _AHEAD // 2)
            tokens = index[due, np.newaxis] + np.arange(_AHEAD)
            numbers = uniforms(self._nuclei.seeds[due].repeat(_AHEAD), tokens.ravel())
            self._uniforms[slots[due]] = numbers.reshape(tokens.shape)
            self._first[slots[due]], used[due] = index[due], 0
        found: F64 = self._uniforms[slots, used]
        return found

    def _rank(self, candidates: Candidates) -> RankedRows:
        """Rank the candidates of the drawing sequences, after subtracting their penalties."""
        adjustments = self._nuclei.penalties
        if not adjustments:
            return rank_candidates(candidates)
        for sampler in self._nuclei.samplers:
            if sampler.uncounted:
                sampler.count_drawn()
        scale = np.array([one.scale for one in adjustments])
        total = np.array([one.total for one in adjustments])
        penalties = self._penalties.ravel().take(
            candidates.ids + (self._nuclei.slots * self._vocab_size)[:, np.newaxis]
        )
        penalties *= scale[:, np.newaxis]
        others = np.maximum(total * scale * (1.0 + ROUNDING) - penalties.sum(axis=1), 0.0)
        return rank_penalised(candidates, penalties, others)

    def _draw(self, rows: RankedRows, uniforms: F64) -> tuple[Places, Flags]:
        """Return the index [N] of the token drawn from each row's ranking, and flags [N]: the draw is certain."""
        nuclei = self._nuclei
        mass = np.exp(rows.scaled).cumsum(axis=1)  # [N, K]; constant from the last certain token on
        weight = mass if nuclei.is_plain else np.exp(rows.scaled / nuclei.temperature[:, np.newaxis]).cumsum(axis=1)
        least_cut = nuclei.least_p * (mass[:, -1] + rows.least_rest)
        most_cut = nuclei.most_p * (mass[:, -1] + rows.most_rest)
        fewest, greatest = self._count_kept(rows, mass, least_cut, most_cut)
        each = np.arange(len(mass))
        least = weight[each, np.minimum(fewest, rows.size) - 1]
        most = weight[each, np.minimum(greatest, rows.size) - 1]
        reaches_out = (greatest > rows.size) & (rows.rest > 0)
        if reaches_out.any():
            outside = self._bound_kept_rest(rows, mass[:, -1], least_cut, most_cut)
            least = np.where(reaches_out & (fewest > rows.size), least + outside[0], least)
            most = np.where(reaches_out, most + outside[1], most)
        index = (weight > (uniforms * least)[:, np.newaxis]).argmax(axis=1)
        return index, rows.is_known & (weight[each, index] > uniforms * most)

    def _count_kept(self, rows: RankedRows, mass: F64, least_cut: F64, most_cut: F64) -> tuple[Places, Places]:
        """Return for each row the least and the greatest number [N] of tokens that top-k and top-p may keep.

        A number greater than that of the certain tokens means that some of the rest are kept too.
        """
        each, top_k = np.arange(len(mass)), self._nuclei.top_k
        first = (mass > least_cut[:, np.newaxis]).argmax(axis=1)  # the last kept token, if any mass exceeds the cut
        fewest = np.minimum(np.where(mass[:, -1] > least_cut, first, rows.size) + 1, top_k)
        if ((mass[each, first] > most_cut) | (mass[:, -1] <= least_cut)).all():  # nearly always
            return fewest, fewest
        first = (mass > most_cut[:, np.newaxis]).argmax(axis=1)
        return fewest, np.minimum(np.where(mass[:, -1] > most_cut, first, rows.size) + 1, top_k)

    def _bound_kept_rest(self, rows: RankedRows, ranked: F64, least_cut: F64, most_cut: F64) -> tuple[F64, F64]:
        """Return bounds [N] of the sum of p^(1 / temperature) over the kept ones of each row's unranked tokens.

        They are meaningful for the rows that may keep some of these.
        """
        count = np.maximum(np.minimum(rows.rest, self._nuclei.top_k - rows.size), 1)
        one = np.exp(rows.ceiling)
        least = np.minimum(rows.least_rest * count / np.maximum(rows.rest, 1), least_cut - ranked)
        most = np.minimum(np.minimum(rows.most_rest, count * one), most_cut + one - ranked)
        return _bound_powers(least, most, count, rows.ceiling, self._nuclei.temperature)


def _bound_powers(least: F64, most: F64, count: F64, ceiling: F64, temperature: F64) -> tuple[F64, F64]:
    """Return bounds [N] of sums of (1 / temperature)-th powers: `bound_powers` of `ranking.py` for N rows."""
    is_cold = temperature <= 1.0
    even = np.where(is_cold, least, most)
    uneven = np.where(is_cold, most, least)
    of_even = np.where(even > 0.0, np.exp(np.log(count) + np.log(even / count) / temperature), 0.0)
    of_uneven = np.where(uneven > 0.0, np.exp(np.log(uneven) + ceiling / temperature - ceiling), 0.0)
    lower, upper = np.where(is_cold, of_even, of_uneven), np.where(is_cold, of_uneven, of_even)
    return lower * (1.0 - ROUNDING), upper * (1.0 + ROUNDING)
