"""One row of logits as a step reads it back: the greatest few, the log-sum-exp, and a way to the whole row.

Knows the layout of a read-out; does not know what is drawn from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from rnn_engine.errors import StepError
from rnn_engine.types import F32, I32, Readout


@dataclass(frozen=True, slots=True)
class LogitRow:
    """K candidates out of V tokens. `read_full` may be called until the runner's next step.

    `of` and `of_full` raise StepError where the log-sum-exp is infinite or undefined.
    """

    ids: I32  # [K] greatest logit first, equal logits by ascending id
    logits: F32  # [K]
    logsumexp: float  # over the whole row, finite
    vocab_size: int
    read_full: Callable[[], F32]  # -> [V] logits

    @staticmethod
    def of(readout: Readout, row: int, vocab_size: int) -> LogitRow:
        """Row number `row` of a step's read-out."""
        return LogitRow(
            ids=readout.ids[row],
            logits=readout.logits[row],
            logsumexp=_checked(float(readout.logsumexp[row])),
            vocab_size=vocab_size,
            read_full=partial(readout.full_row, row),
        )

    @staticmethod
    def of_full(full: F32, count: int) -> LogitRow:
        """A whole row [V] as at least `count` candidates."""
        greatest = full.max()
        logsumexp = _checked(float(greatest) + math.log(np.exp(full - np.float64(greatest)).sum()))
        candidates = np.arange(len(full))
        if count < len(full):
            candidates = np.flatnonzero(full >= np.partition(full, -count)[-count])
        ids = candidates[np.argsort(-full[candidates], kind="stable")].astype(np.int32)
        return LogitRow(ids, full[ids], logsumexp, len(full), lambda: full)


def _checked(logsumexp: float) -> float:
    """Raises StepError where a row holds no probabilities, which would make nonsense of every draw."""
    if not math.isfinite(logsumexp):
        raise StepError(f"the model's logits have a log-sum-exp of {logsumexp}; expected a finite number")
    return logsumexp
