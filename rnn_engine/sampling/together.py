"""Draw the next tokens of many sequences at once, from the candidates of one step.

It is `Nucleus` over all rows in arrays, with the same bounds and the same results. Where the candidates of a row do not
decide its draw, or its sampler is another one, there is none, and the sequence draws by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rnn_engine.sampling.adjustments import F64, Adjustments
from rnn_engine.sampling.bounds import ROUNDING
from rnn_engine.sampling.joint_rows import (
    Candidates,
    Flags,
    Places,
    RankedRows,
    rank_candidates,
    rank_penalised,
)
from rnn_engine.sampling.philox import uniforms
from rnn_engine.sampling.rows import RunRows
from rnn_engine.sampling.sequence_sampler import Draw, SequenceSampler

FEWEST = 6  # rows; fewer are drawn from more quickly one by one

_AHEAD = 64  # tokens whose random numbers are made at once, of all sequences that have used half of theirs
_ALL = 2**31 - 1  # top_k that keeps every token
_NOWHERE = -_AHEAD  # before every text


@dataclass(frozen=True, slots=True, eq=False)
class _Nuclei:
    """How N sequences draw."""

    samplers: Sequence[SequenceSampler]
    slots: Places  # [N]
    seeds: NDArray[np.uint64]  # [N]
    top_k: Places  # [N]
    least_p: F64  # [N] top_p with room for the rounding of sums, as is the next
    most_p: F64  # [N]
    temperature: F64  # [N]
    is_plain: bool  # all temperatures are 1
    penalties: list[Adjustments]  # [N], or none where nobody penalises

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
    """Draws for the sequences of one scheduler. For one thread."""

    def __init__(self, vocab_size: int, num_slots: int) -> None:
        self._vocab_size = vocab_size
        self._penalties: F64 = np.zeros((num_slots, vocab_size))  # pages that nobody has written take no memory
        self._penalising: dict[int, Adjustments] = {}  # by slot: whose penalties lie in its row
        self._uniforms: F64 = np.zeros((num_slots, _AHEAD))  # of a slot's tokens from `_first` on
        self._first: Places = np.full(num_slots, _NOWHERE)
        self._nuclei = _Nuclei.of(())  # those of the latest draw: mostly the next step draws for the same sequences

    def join(self, slot: int, sampler: SequenceSampler) -> None:
        """Have `sampler` draw for the sequence in `slot` from now on, in place of the one before."""
        if (before := self._penalising.pop(slot, None)) is not None:
            before.clear()
        sampler.slot = slot
        self._first[slot] = _NOWHERE
        if sampler.nucleus is not None and sampler.adjustments.penalises:
            self._penalising[slot] = sampler.adjustments
            sampler.adjustments.keep_in(self._penalties[slot])

    def leave(self, sampler: SequenceSampler) -> None:
        """Let go of a sampler that has joined, which may join again."""
        adjustments = self._penalising.pop(sampler.slot, None)
        if adjustments is not None:
            adjustments.keep_in(np.zeros(self._vocab_size))
        sampler.leave_device()
        self._nuclei = _Nuclei.of(())  # it may join in another slot

    def draw(self, samplers: Sequence[SequenceSampler], rows: Sequence[RunRows]) -> list[Draw | None]:
        """Draw a token for each of `samplers`, which have joined, from the last of its rows, and count it as generated.

        The rows are of one step. None where a token has to be drawn by `SequenceSampler.draw`.
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
        with np.errstate(all="ignore"):  # rows that hold no probabilities settle nothing
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
        """Return [N] the random number of each sequence's next draw."""
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
        """Rank the candidates of the sequences that draw."""
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
        """Return [N] the index of each row's token in its ranking, and whether what is known decides it."""
        nuclei = self._nuclei
        mass = np.exp(rows.scaled).cumsum(axis=1)  # [N, K]; the same from the last certain token on
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
        """Return [N] how many tokens are kept at least and at most; more than are certain: some that follow, too."""
        each, top_k = np.arange(len(mass)), self._nuclei.top_k
        first = (mass > least_cut[:, np.newaxis]).argmax(axis=1)  # before which most of what is kept lies
        fewest = np.minimum(np.where(mass[:, -1] > least_cut, first, rows.size) + 1, top_k)
        if ((mass[each, first] > most_cut) | (mass[:, -1] <= least_cut)).all():  # nearly always
            return fewest, fewest
        first = (mass > most_cut[:, np.newaxis]).argmax(axis=1)
        return fewest, np.minimum(np.where(mass[:, -1] > most_cut, first, rows.size) + 1, top_k)

    def _bound_kept_rest(self, rows: RankedRows, ranked: F64, least_cut: F64, most_cut: F64) -> tuple[F64, F64]:
        """Bound [N] the sum of p^(1/T) over the tokens beyond the certain ones that are kept, where any may be."""
        count = np.maximum(np.minimum(rows.rest, self._nuclei.top_k - rows.size), 1)
        one = np.exp(rows.ceiling)
        least = np.minimum(rows.least_rest * count / np.maximum(rows.rest, 1), least_cut - ranked)
        most = np.minimum(np.minimum(rows.most_rest, count * one), most_cut + one - ranked)
        return _bound_powers(least, most, count, rows.ceiling, self._nuclei.temperature)


def _bound_powers(least: F64, most: F64, count: F64, ceiling: F64, temperature: F64) -> tuple[F64, F64]:
    """Bound [N] sums of (1 / temperature)-th powers, as the function of this name in `bounds.py` does for one row."""
    is_cold = temperature <= 1.0
    even = np.where(is_cold, least, most)
    uneven = np.where(is_cold, most, least)
    of_even = np.where(even > 0.0, np.exp(np.log(count) + np.log(even / count) / temperature), 0.0)
    of_uneven = np.where(uneven > 0.0, np.exp(np.log(uneven) + ceiling / temperature - ceiling), 0.0)
    lower, upper = np.where(is_cold, of_even, of_uneven), np.where(is_cold, of_uneven, of_even)
    return lower * (1.0 - ROUNDING), upper * (1.0 + ROUNDING)
