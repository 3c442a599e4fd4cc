"""Mixed generation: several states run the same tokens, and each next token is drawn from their mixed logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rnn_engine.requests import Event, GenerateRequest, StateMix, TokenInfo
from rnn_engine.sampling.adjustments import F64
from rnn_engine.sampling.params import MixKind
from rnn_engine.sampling.ranking import LogitRow, RunRows
from rnn_engine.scheduler.phases import AwaitSequences, Decode, TakeIn
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.scheduler.sequence import SamplingSequence, SlotSequence
from rnn_engine.types import F32, TokenRun


class MixedSequence(SamplingSequence):
    """The first sequence of a mix: it runs from the first state, and draws the tokens that all sequences run."""

    _decode_phase = Decode
    _followers: tuple[Follower, ...] = ()

    @property
    def sequences(self) -> tuple[SlotSequence, ...]:
        return (self, *self._followers)

    def join(self, request: GenerateRequest, slot: int, start: Start) -> None:
        """Add a sequence that runs in `slot` from the mix's next state. Call it only before anything is run."""
        self._followers = (*self._followers, Follower(self, request, slot, start))

    def begin(self) -> list[Event]:
        for sequence in self.sequences:
            if sequence.start.logits is not None:
                _hold_row(sequence, sequence.start.logits)
        return [*self.progress(), *self._draw_mixed()]

    def take_rows(self, rows: RunRows) -> list[Event]:
        return self.take_row(self, rows.last())

    def take_row(self, sequence: SlotSequence, row: LogitRow) -> list[Event]:
        """Hold a sequence's row; draw from the mix once all rows have come. Return the events that follow."""
        _hold_row(sequence, row.read_full().copy())
        return self._draw_mixed()

    def draw_late(self) -> list[Event]:
        events = super().draw_late()
        self._leave_rows()
        return events

    @property
    def own_logits(self) -> F32 | None:
        return self.row

    def _end_here(self) -> None:
        super()._end_here()
        if isinstance(self.phase, Decode):
            self.enter(TakeIn())

    def _close(self, end: int, unscored: Sequence[TokenInfo] = (), events: Sequence[Event] = ()) -> None:  # noqa: ARG002
        self.enter(TakeIn())

    def make_masks(self, num_rows: int) -> Callable[[], NDArray[np.uint32] | None] | None:  # noqa: ARG002
        return None  # the mask is for the mixed row

    def _draw_mixed(self) -> list[Event]:
        rows = [sequence.row for sequence in self.sequences if sequence.row is not None]
        if len(rows) < len(self.sequences):
            return []
        events = self._go_on_whole(mix_logits(rows, self._mix.weights, self._mix.kind))
        self._leave_rows()
        return events

    def _leave_rows(self) -> None:
        """Drop all logit rows after a draw; keep them if the text has ended or its next mask is awaited."""
        if not self.finished and not self.awaits_mask:
            self.row = None
            for follower in self._followers:
                follower.row = None
                follower.enter(follower.decode)

    @property
    def _mix(self) -> StateMix:
        assert self.request.mix is not None, "a request without a mix is no mixed sequence"
        return self.request.mix


class Follower(SlotSequence):
    """Another sequence of a mix: it runs the tokens that `first` draws, and passes its logit rows to `first`."""

    def __init__(self, first: MixedSequence, request: GenerateRequest, slot: int, start: Start) -> None:
        super().__init__(first.key, request, slot, start, first.context)
        self._first = first
        self.generated = first.generated
        self.decode = TakeIn()

    @property
    def sequences(self) -> tuple[SlotSequence, ...]:
        return self._first.sequences

    @property
    def awaits_mask(self) -> bool:
        return self._first.awaits_mask

    def leave_prompt(self, run: TokenRun, num_draws: int) -> None:  # noqa: ARG002
        self.enter(self.decode)

    def take_rows(self, rows: RunRows) -> list[Event]:
        return self._first.take_row(self, rows.last())


def _hold_row(sequence: SlotSequence, row: F32) -> None:
    sequence.row = row
    sequence.enter(AwaitSequences())


# Mix the next-token rows of several states into one.
#
# With weights w_i, logits l_i and probabilities p_i = softmax(l_i), the mixed distribution is
#
# * `log`: softmax(sum w_i log p_i), the product of the p_i, each raised to its weight. Weights 1 + g and -g contrast
#   one state with another, as classifier-free guidance does. The sum of the weights acts as the inverse of a
#   temperature.
# * `probability`: sum w_i p_i / sum w_i, as if each token came from one of the states, drawn by their weights.


def mix_logits(rows: Sequence[F32], weights: Sequence[float], kind: MixKind) -> F32:
    """Mix the logit rows [V] of several states by `weights`, and return the logits [V] of the mixed distribution.

    A row of weight 0 takes no part. A row of weight 1 is not changed if no other takes part.
    """
    parts = [(row.astype(np.float64), weight) for row, weight in zip(rows, weights, strict=True) if weight != 0.0]
    if kind == "log":
        mixed = _weighted_sum([row for row, _ in parts], [weight for _, weight in parts])
    elif len(parts) == 1:
        mixed = parts[0][0]
    else:
        mixed = _logsumexp_of_mix(np.stack([row - _logsumexp_of_mix(row) + math.log(weight) for row, weight in parts]))
    with np.errstate(over="ignore"):  # a logit beyond f32 becomes infinite, and drawing from its row raises
        return np.asarray(mixed, np.float32)


def _weighted_sum(rows: Sequence[F64], weights: Sequence[float]) -> F64:
    """Return the sum of `rows` [V] by `weights`. A token that no row allows, with -inf in all, has -inf."""
    with np.errstate(invalid="ignore"):  # the difference of infinite logits
        mixed: F64 = np.asarray(sum(weight * row for row, weight in zip(rows, weights, strict=True)))
    if np.isnan(mixed).any():
        mixed[np.logical_and.reduce([np.isneginf(row) for row in rows])] = -math.inf
    return mixed


def _logsumexp_of_mix(values: F64) -> F64:
    """Return the log-sum-exp of `values` over the first axis; it is -inf if all of them are."""
    greatest = values.max(axis=0)
    greatest = np.where(np.isneginf(greatest), 0.0, greatest)  # since -inf - -inf is no number
    with np.errstate(divide="ignore"):  # the logarithm of 0
        total: F64 = greatest + np.log(np.exp(values - greatest).sum(axis=0))
    return total
