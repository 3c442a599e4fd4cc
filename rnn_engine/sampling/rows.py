"""One row of logits as a step reads it back: the greatest few, the log-sum-exp, and a way to the whole row.

Knows the layout of a read-out; does not know what is drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rnn_engine.types import F32, I32, Readout


@dataclass(frozen=True, slots=True)
class LogitRow:
    """K candidates out of V tokens. `read_full` may be called until the runner's next step."""

    ids: I32  # [K] greatest logit first, equal logits by ascending id
    logits: F32  # [K]
    logsumexp: float  # over the whole row
    vocab_size: int
    read_full: Callable[[], F32]  # -> [V] logits

    @staticmethod
    def of(readout: Readout, row: int, vocab_size: int) -> LogitRow:
        """Row number `row` of a step's read-out."""
        return LogitRow(
            ids=readout.ids[row],
            logits=readout.logits[row],
            logsumexp=float(readout.logsumexp[row]),
            vocab_size=vocab_size,
            read_full=partial(readout.full_row, row),
        )
