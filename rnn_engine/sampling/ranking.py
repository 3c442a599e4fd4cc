"""Rows of logits as a step returns them, and their ranking, with bounds for the tokens that are not ranked.

A row's candidates are its K greatest logits, so the logit of any other token is at most that of the lowest candidate.
Bias and penalties then move tokens. The ranking is certain for the candidates that stay above every logit that a token
outside them may reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StepError
from rnn_engine.sampling.adjustments import F64, Adjustments
from rnn_engine.sampling.masks import AllowedTokens, Mask, allowed_tokens, are_allowed
from rnn_engine.types import F32, I32, Readout


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class LogitRow:
    """One row of a step's logits, read as K candidates (the greatest logits of allowed tokens) and a log-sum-exp.

    `read_full` returns the whole row of the model's own logits, unchanged by a mask. It may be called as long as
    `Readout.full_row`.
    `of` and `of_full` raise StepError if a log-sum-exp is infinite or undefined.
    """

    ids: I32  # [K] greatest logit first, equal logits by ascending id
    logits: F32  # [K]
    logsumexp: float  # over the whole row, whatever the mask; finite
    vocab_size: int
    read_full: Callable[[], F32]  # -> [V] logits
    num_allowed: int  # V without a mask
    allowed_logsumexp: float  # over the allowed tokens; finite
    mask: Mask | None = None  # None allows all

    @staticmethod
    def of(readout: Readout, row: int, vocab_size: int, allowed: AllowedTokens | None = None) -> LogitRow:
        """Return logit row number `row` of a read-out. `allowed` are the tokens that its mask allowed; None is all."""
        ids, logits = readout.ids[row], readout.logits[row]
        logsumexp = allowed_logsumexp = _checked(readout.logsumexp.item(row))
        num_allowed = vocab_size
        if allowed is not None:
            num_allowed = allowed.count
            ids, logits = ids[:num_allowed], logits[:num_allowed]  # the others stand for no token
            allowed_logsumexp = _checked(readout.allowed_logsumexp.item(row))
        return LogitRow(
            ids=ids,
            logits=logits,
            logsumexp=logsumexp,
            vocab_size=vocab_size,
            read_full=partial(readout.full_row, row),
            num_allowed=num_allowed,
            allowed_logsumexp=allowed_logsumexp,
            mask=None if allowed is None else allowed.mask,
        )

    @staticmethod
    def of_full(full: F32, count: int, mask: Mask | None = None) -> LogitRow:
        """Make a row from all its logits [V], with at least `count` candidates, or all that `mask` allows if fewer."""
        logsumexp = allowed_logsumexp = _logsumexp(full)
        num_allowed = len(full)
        if mask is not None:
            allowed = allowed_tokens(mask, len(full))
            num_allowed, allowed_logsumexp = len(allowed), _logsumexp(full[allowed])
        nothing = np.empty(0, np.int32), np.empty(0, np.float32)
        row = LogitRow(*nothing, logsumexp, len(full), lambda: full, num_allowed, allowed_logsumexp, mask)
        return row.widened(full, count)

    def scattered(self) -> F32:
        """Return an array [V] of the candidates' logits by token id, with 0 for all other tokens."""
        full: F32 = np.zeros(self.vocab_size, np.float32)
        full[self.ids] = self.logits
        return full

    def widened(self, full: F32, count: int) -> LogitRow:
        """Return a copy with at least `count` candidates, or all allowed tokens, of the whole row `full`."""
        allowed = None if self.mask is None else allowed_tokens(self.mask, len(full))
        logits = full if allowed is None else full[allowed]
        if count < len(logits):
            places = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
            places = places[np.argsort(-logits[places], kind="stable")]
        else:
            places = np.argsort(-logits, kind="stable")
        ids = places if allowed is None else allowed[places]
        return replace(self, ids=ids.astype(np.int32), logits=logits[places])


RowSource: TypeAlias = Callable[[], LogitRow]
"""Returns a row. It is called only if the row is read; most rows are not."""


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class RunRows:
    """The logit rows of one token run (consecutive tokens of a slot). Valid as long as `Readout.full_row`."""

    readout: Readout
    first: int  # number of the first row in the read-out
    count: int
    vocab_size: int
    allowed: AllowedTokens | None = None  # the tokens that the last row allows; None is all

    def __len__(self) -> int:
        return self.count

    def row(self, index: int, allowed: AllowedTokens | None = None) -> LogitRow:
        """Return logit row number `index` of the run, of which tokens were `allowed`. Raises as `LogitRow.of` does."""
        return LogitRow.of(self.readout, self.first + index, self.vocab_size, allowed)

    def last(self) -> LogitRow:
        """Return the last logit row of the token run, which must have one. Raises StepError as `LogitRow.of` does."""
        return self.row(self.count - 1, self.allowed)

    def target_logit(self, index: int) -> float:
        """Return the logit of a target token: the token that logit row number `index` of the run is to score."""
        return self.readout.target_logits.item(self.first + index)


def _logsumexp(logits: F32) -> float:
    if len(logits) == 0:
        raise StepError("the mask of a token allows no token")
    greatest = _checked(float(logits.max()))
    return _checked(greatest + math.log(np.exp(logits - np.float64(greatest)).sum()))


def _checked(logsumexp: float) -> float:
    """Return `logsumexp` if it is finite. Raises StepError if not, because the row then gives no probabilities."""
    if not math.isfinite(logsumexp):
        raise StepError(f"the model's logits have a log-sum-exp of {logsumexp}; expected a finite number")
    return logsumexp


@dataclass(frozen=True, slots=True)
class SequenceContext:
    """The data of a sequence that its sampler needs: prompt, earlier tokens, stop tokens and vocabulary."""

    earlier: Sequence[int] = ()  # tokens of earlier replies, oldest first, which count as seen
    prompt: Sequence[int] = ()
    stop_tokens: Sequence[int] = ()
    min_tokens: int = 0  # no stop token is drawn before this many tokens
    vocab_size: int = 2**16
    token_bytes: Callable[[int], bytes] = lambda _: b""


NO_CONTEXT = SequenceContext()


Bounds: TypeAlias = tuple[float, float]
"""The least and the most that a quantity can be."""

ROUNDING = 1e-9  # bounds are widened by it; sums of V numbers in another order differ by less

# The error of a runner's f32 log-sum-exp is bounded by a constant, plus a multiple of its size.
LOGSUMEXP_ERROR = (1e-5, 1e-6)


def bound_rest(ranking: Ranking, ranked_mass: float) -> Bounds:
    """Return bounds of all unranked tokens' mass, exp(logit - logits[0]); `ranked_mass` is that of the ranked."""
    rest = ranking.rest
    if rest is None:
        return 0.0, 0.0
    least, most = _bound_unread(ranking, rest, ranked_mass)
    top, lowest = ranking.logits.item(0), rest.row.logits.item(-1)
    if len(rest.unread):
        change = np.exp(rest.unread + (lowest - top)) - math.exp(lowest - top)
        gain = np.maximum(change, 0.0).sum() if rest.ceiling > lowest else 0.0
        least, most = max(least + float(change.sum() - gain), 0.0), most + float(gain)
    if len(rest.uncertain):
        uncertain = float(np.exp(rest.uncertain - top).sum())
        least, most = least + uncertain, most + uncertain
    return least, most


def _bound_unread(ranking: Ranking, rest: Rest, ranked_mass: float) -> Bounds:
    """Return bounds of the total mass that the tokens not read from the device have without bias and penalties."""
    row, top = rest.row, ranking.logits.item(0)
    limit = (row.num_allowed - len(rest.known)) * math.exp(row.logits.item(-1) - top)  # of at most 1 each
    if row.allowed_logsumexp - top >= 700.0:  # exp overflows if the top candidates were pushed very far down
        return 0.0, limit
    total = math.exp(row.allowed_logsumexp - top)
    error = total * (LOGSUMEXP_ERROR[0] + LOGSUMEXP_ERROR[1] * abs(row.allowed_logsumexp))
    known = ranked_mass if rest.known is ranking.logits else float(np.exp(rest.known - top).sum())
    return min(max(total - known - error, 0.0), limit), min(max(total - known + error, 0.0), limit)


def bound_powers(mass: Bounds, count: int, ceiling: float, temperature: float) -> Bounds:
    """Return bounds of the sum of the (1 / temperature)-th powers of `count` numbers whose sum is within `mass`.

    Each number is at most exp(ceiling).
    Take n numbers of sum m, each at most x. If a >= 1, their a-th powers sum up to at least n (m/n)^a and at most
    m x^(a-1). If a <= 1, the two bounds change places.
    This follows from the power mean inequality, and from p^a <= p x^(a-1).
    """
    if temperature <= 1.0:
        return widen((_power_of_even(mass[0], count, temperature), _power_of_uneven(mass[1], ceiling, temperature)))
    return widen((_power_of_uneven(mass[0], ceiling, temperature), _power_of_even(mass[1], count, temperature)))


def widen(bounds: Bounds) -> Bounds:
    """Return `bounds`, a pair of numbers, widened by the rounding error of sums."""
    return bounds[0] * (1.0 - ROUNDING), bounds[1] * (1.0 + ROUNDING)


def _power_of_even(mass: float, count: int, temperature: float) -> float:
    """Return the sum of the (1 / temperature)-th powers of `count` equal numbers whose sum is `mass`."""
    if mass == 0.0:
        return 0.0
    return math.exp(math.log(count) + math.log(mass / count) / temperature)


def _power_of_uneven(mass: float, ceiling: float, temperature: float) -> float:
    """Return the sum of the (1 / temperature)-th powers of numbers with the sum `mass`, each exp(`ceiling`) or 0."""
    if mass == 0.0:
        return 0.0
    return math.exp(math.log(mass) + ceiling / temperature - ceiling)


Places: TypeAlias = NDArray[np.intp]

_NOTHING: F64 = np.empty(0)
_NOTHING.flags.writeable = False


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class Ranking:
    """A row's tokens for a sampler: S ranked ones, likeliest first, and the rest of those allowed below them."""

    ids: I32  # [S]
    raw: F64  # [S] the model's logits
    logits: F64  # [S] adjusted, descending, equal ones by ascending id
    rest: Rest | None  # None if all allowed tokens are ranked
    is_selection: bool = False  # a sampler's `selection` chose these tokens; the draw then skips that step


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class Rest:
    """A row's unranked tokens: their number, and bounds of their logits, so that they need not be read."""

    row: LogitRow
    count: int  # how many there are
    ceiling: float  # an upper bound of their adjusted logits
    known: F64  # [N] the model's logits of all tokens that were read, ranked or not
    uncertain: F64  # [N - S] the adjusted logits of the tokens that were read and are not ranked
    unread: F64  # bounds of what is added to tokens that were not read, and some zeros


def rank(row: LogitRow, adjustments: Adjustments, full: F32 | None = None) -> Ranking:
    """Rank a row's candidates by adjusted logit, as far as no token that was not read can come before them.

    The ranking may be empty. `full` [V] is the whole row if it has been read. All adjusted tokens count as read then.
    """
    lowest = row.logits.item(-1)
    if len(adjustments) == 0:
        raw = row.logits.astype(np.float64)
        count = row.num_allowed - len(raw)
        return Ranking(row.ids, raw, raw, Rest(row, count, lowest, raw, _NOTHING, _NOTHING) if count else None)
    ids, known, added, unread = _read(row, adjustments, full)
    falling = -(known + added)
    order = np.lexsort((ids, falling))
    ids, raw, falling = ids[order], known[order], falling[order]
    logits = -falling
    if len(ids) == row.num_allowed:
        return Ranking(ids, raw, logits, None)
    ceiling = lowest + (float(unread.max()) if len(unread) else 0.0)
    size = int(falling.searchsorted(-ceiling))
    if ceiling == lowest:  # an unread token of the same logit has a higher id than any candidate with that logit
        last = row.ids.item(-1)
        while size < len(ids) and logits.item(size) == raw.item(size) == lowest and ids.item(size) <= last:
            size += 1
    rest = Rest(row, row.num_allowed - size, ceiling, known, logits[size:], unread)
    return Ranking(ids[:size], raw[:size], logits[:size], rest)


def rank_all(
    full: F32, mask: Mask | None, adjustments: Adjustments, selection: Callable[[F64], Places] | None = None
) -> Ranking:
    """Rank those tokens of a whole row [V] that `mask` allows and `selection` keeps. None allows or keeps all."""
    logits = full.astype(np.float64)
    tokens = adjustments.tokens
    logits[tokens] += adjustments.added(tokens, logits[tokens])
    ids = np.arange(len(full), dtype=np.int32) if mask is None else allowed_tokens(mask, len(full))
    if mask is not None:
        logits = logits[ids]
    if selection is not None:
        kept = selection(logits)
        ids, logits = ids[kept], logits[kept]
    order = np.argsort(-logits, kind="stable")
    ids = ids[order]
    return Ranking(ids, full[ids].astype(np.float64), logits[order], None, selection is not None)


def _read(row: LogitRow, adjustments: Adjustments, full: F32 | None) -> tuple[I32, F64, F64, F64]:
    """Return ids, logits and adjustments of the N tokens that were read, and bounds of the others' adjustments."""
    ids, known = row.ids, row.logits.astype(np.float64)
    added = adjustments.added(ids, known)
    others = adjustments.others(ids)
    if row.mask is not None:
        others = others[are_allowed(row.mask, others)]
    if full is None:
        return ids, known, added, adjustments.bound_added(others, row.logits.item(-1))
    logits = full[others].astype(np.float64)
    ids = np.concatenate((ids, others))
    return ids, np.concatenate((known, logits)), np.concatenate((added, adjustments.added(others, logits))), _NOTHING


def top_logprobs(row: LogitRow, count: int) -> tuple[tuple[int, float], ...]:
    """Return the `count` likeliest allowed tokens as (id, log-probability in the whole row), lower ids first."""
    wide = row
    if len(row.ids) < min(count, row.num_allowed):
        wide = LogitRow.of_full(row.read_full(), count, row.mask)
    ids, logits = wide.ids[:count].tolist(), wide.logits[:count].tolist()
    return tuple((token, logit - row.logsumexp) for token, logit in zip(ids, logits, strict=True))
