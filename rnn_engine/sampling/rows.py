"""Rows of logits as a step returns them, with their top candidates, and the mixing of several states' rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from rnn_engine.errors import StepError
from rnn_engine.sampling.masks import AllowedTokens, Mask, allowed_tokens
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
