"""Draw the next tokens of many sequences at once, from the candidates of one step.

It is `Nucleus` over all rows in arrays, with the same bounds and the same results. Where the candidates of a row do not
decide its draw, or its sampler is another one, there is none, and the sequence draws by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.sampling.adjustments import F64
from rnn_engine.sampling.bounds import LOGSUMEXP_ERROR, ROUNDING
from rnn_engine.sampling.masks import AllowedTokens
from rnn_engine.sampling.rows import RunRows
from rnn_engine.sampling.sequence_sampler import Draw, SequenceSampler
from rnn_engine.types import Readout

FEWEST = 6  # rows; fewer are drawn from more quickly one by one

_ALL = 2**31 - 1  # top_k that keeps every token
_FARTHEST = 700.0  # from the first logit to the log-sum-exp; exp overflows beyond

_Flags: TypeAlias = NDArray[np.bool_]
_Places: TypeAlias = NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True, eq=False)
class _Nuclei:
    """How N sequences draw."""

    samplers: Sequence[SequenceSampler]
    top_k: _Places  # [N]
    least_p: F64  # [N] top_p with room for the rounding of sums, as is the next
    most_p: F64  # [N]
    temperature: F64  # [N]
    is_plain: bool  # all temperatures are 1

    @staticmethod
    def of(samplers: Sequence[SequenceSampler]) -> _Nuclei:
        nuclei = [sampler.nucleus for sampler in samplers if sampler.nucleus is not None]
        top_p = np.array([nucleus.top_p for nucleus in nuclei])
        temperature = np.array([nucleus.temperature for nucleus in nuclei])
        return _Nuclei(
            samplers,
            np.array([nucleus.top_k or _ALL for nucleus in nuclei]),
            top_p * (1.0 - ROUNDING),
            top_p * (1.0 + ROUNDING),
            temperature,
            bool((temperature == 1.0).all()),
        )


class JointDraws:
    """Draws for the sequences of one scheduler. For one thread."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._nuclei = _Nuclei.of(())  # those of the latest draw: mostly the next step draws for the same sequences

    def draw(self, samplers: Sequence[SequenceSampler], rows: Sequence[RunRows]) -> list[Draw | None]:
        """Draw a token for each of `samplers` from the last of its rows, and count it as generated.

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
        readout = rows[0].readout
        numbers = np.array([each.first + each.count - 1 for each in rows])
        allowed = [each.allowed for each in rows]
        uniforms = np.array([sampler.next_uniform for sampler in samplers])
        with np.errstate(all="ignore"):  # rows that hold no probabilities settle nothing
            index, settled = self._draw(numbers, allowed, uniforms, readout)
        tokens = readout.ids[numbers, index].tolist()
        logprobs = (readout.logits[numbers, index].astype(np.float64) - readout.logsumexp[numbers]).tolist()
        for which in np.flatnonzero(settled).tolist():
            samplers[which].settle(tokens[which])
            draws[joining[which]] = Draw(tokens[which], logprobs[which])
        return draws

    def _draw(
        self, numbers: _Places, allowed: Sequence[AllowedTokens | None], uniforms: F64, readout: Readout
    ) -> tuple[_Places, _Flags]:
        """Return [N] the index of each row's token among its candidates, and whether they decide it."""
        nuclei = self._nuclei
        logits = readout.logits[numbers].astype(np.float64)  # [N, K]
        scaled = logits - logits[:, :1]
        mass = np.exp(scaled).cumsum(axis=1)  # [N, K]; the same from the last allowed token on
        weight = mass if nuclei.is_plain else np.exp(scaled / nuclei.temperature[:, np.newaxis]).cumsum(axis=1)
        rest, logsumexp = self._count_rest(numbers, allowed, readout)
        ranked, lowest, top = mass[:, -1], scaled[:, -1], logits[:, 0]
        gap = logsumexp - top
        limit = rest * np.exp(lowest)
        least_rest, most_rest = _bound_rest(np.exp(gap) - ranked, limit, gap, top)
        least_cut, most_cut = nuclei.least_p * (ranked + least_rest), nuclei.most_p * (ranked + most_rest)
        each, size = np.arange(len(numbers)), logits.shape[1]
        first = (mass > least_cut[:, np.newaxis]).argmax(axis=1)  # before which most of what is kept lies
        is_within = ranked > least_cut
        kept = np.minimum(np.where(is_within, first, size) + 1, nuclei.top_k)
        has_one_cut = ~is_within | (mass[each, first] > most_cut) | (kept == nuclei.top_k)
        least = most = weight[each, np.minimum(kept, size) - 1]
        reaches_out = (kept > size) & (rest > 0)
        if reaches_out.any():
            count = np.maximum(np.minimum(rest, nuclei.top_k - size), 1)
            least_kept = np.minimum(least_rest * count / np.maximum(rest, 1), least_cut - ranked)
            most_kept = np.minimum(np.minimum(most_rest, count * np.exp(lowest)), most_cut + np.exp(lowest) - ranked)
            outside = _bound_powers(least_kept, most_kept, count, lowest, nuclei.temperature)
            least = np.where(reaches_out, least + outside[0], least)
            most = np.where(reaches_out, most + outside[1], most)
        index = (weight > (uniforms * least)[:, np.newaxis]).argmax(axis=1)
        return index, (np.abs(gap) < _FARTHEST) & has_one_cut & (weight[each, index] > uniforms * most)

    def _count_rest(
        self, numbers: _Places, allowed: Sequence[AllowedTokens | None], readout: Readout
    ) -> tuple[F64, F64]:
        """Return [N] or [] how many tokens that are allowed are no candidates, and the log-sum-exp of those allowed."""
        size = readout.logits.shape[1]
        if not any(allowed):
            return np.array(float(self._vocab_size - size)), readout.logsumexp[numbers].astype(np.float64)
        counts = np.array([self._vocab_size if one is None else one.count for one in allowed], np.float64)
        is_masked = np.array([one is not None for one in allowed])
        logsumexp = np.where(is_masked, readout.allowed_logsumexp[numbers], readout.logsumexp[numbers])
        return np.maximum(counts - size, 0), logsumexp.astype(np.float64)


def _bound_rest(unread: F64, limit: F64, gap: F64, top: F64) -> tuple[F64, F64]:
    """Bound [N] what tokens that are no candidates weigh, in units of the first one: `unread` but for rounding.

    `limit` is what they weigh if each is as likely as the last candidate; `gap` is from `top`, the first logit, to the
    log-sum-exp.
    """
    error = np.exp(gap) * (LOGSUMEXP_ERROR[0] + LOGSUMEXP_ERROR[1] * np.abs(gap + top))
    least: F64 = np.minimum(np.maximum(unread - error, 0.0), limit)
    most: F64 = np.minimum(np.maximum(unread + error, 0.0), limit)
    return least, most


def _bound_powers(least: F64, most: F64, count: F64, ceiling: F64, temperature: F64) -> tuple[F64, F64]:
    """Bound [N] sums of (1 / temperature)-th powers, as the function of this name in `bounds.py` does for one row."""
    is_cold = temperature <= 1.0
    even = np.where(is_cold, least, most)
    uneven = np.where(is_cold, most, least)
    of_even = np.where(even > 0.0, np.exp(np.log(count) + np.log(even / count) / temperature), 0.0)
    of_uneven = np.where(uneven > 0.0, np.exp(np.log(uneven) + ceiling / temperature - ceiling), 0.0)
    lower, upper = np.where(is_cold, of_even, of_uneven), np.where(is_cold, of_uneven, of_even)
    return lower * (1.0 - ROUNDING), upper * (1.0 + ROUNDING)
