"""A mix of states: the same tokens are run from each, and the next one is drawn from the rows of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rnn_engine.requests import Event, GenerateRequest, StateMix, TokenInfo
from rnn_engine.sampling import Draw, LogitRow, RowSource, RunRows, mix_logits
from rnn_engine.scheduler.member import DECODE, TAKE_IN, Member
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.scheduler.sequence import LiveSequence
from rnn_engine.scheduler.text import Ending
from rnn_engine.types import F32, TokenRun


class MixedSequence(LiveSequence):
    """What is run from the first state; draws for all."""

    _followers: tuple[Follower, ...] = ()

    @property
    def members(self) -> tuple[Member, ...]:
        return (self, *self._followers)

    def join(self, request: GenerateRequest, slot: int, start: Start) -> None:
        """Add what runs from the next state, before anything is run."""
        self._followers = (*self._followers, Follower(self, request, slot, start))

    def begin(self) -> list[Event]:
        for member in self.members:
            member.row = member.start.logits
        return [*self._progress(), *self._draw_mixed()]

    def take_row(self, member: Member, row: LogitRow) -> list[Event]:
        """Take in the next token's row of a member; return the events that follow once all have theirs."""
        member.row = row.read_full().copy()
        return self._draw_mixed()

    def take_draw(self, draw: Draw, row: RowSource) -> list[Event]:
        events = super().take_draw(draw, row)
        self.decodes = False
        return events

    def go_on(self) -> list[Event]:
        events = super().go_on()
        self._leave_rows()
        return events

    @property
    def own_logits(self) -> F32 | None:
        return self.row

    def _leave_run(self, rows: RunRows) -> list[Event]:
        return self.take_row(self, rows.last())

    def _run_given(self, end: int, ending: Ending | None, unscored: Sequence[TokenInfo], events: list[Event]) -> None:  # noqa: ARG002
        self._decode_demand = DECODE if ending is None else TAKE_IN

    def _make_masks(self, num_rows: int) -> Callable[[], NDArray[np.uint32] | None] | None:  # noqa: ARG002
        return None  # the mask is for the mixed row

    def _draw_mixed(self) -> list[Event]:
        rows = [member.row for member in self.members if member.row is not None]
        if len(rows) < len(self.members):
            return []
        events = self._go_on_whole(mix_logits(rows, self._mix.weights, self._mix.kind))
        self._leave_rows()
        return events

    def _leave_rows(self) -> None:
        """Forget the rows from which a token was drawn, but for those at the end."""
        if not self.finished and not self.awaits_mask:
            for member in self.members:
                member.row = None

    @property
    def _mix(self) -> StateMix:
        assert self.request.mix is not None, "a request without a mix is no mixed sequence"
        return self.request.mix


class Follower(Member):
    """Runs what `first` has drawn from a further state, and hands it the row of each next token."""

    def __init__(self, first: MixedSequence, request: GenerateRequest, slot: int, start: Start) -> None:
        super().__init__(first.key, request, slot, start, first.context)
        self._first = first
        self._generated = first._generated
        self._decode_demand = TAKE_IN

    @property
    def members(self) -> tuple[Member, ...]:
        return self._first.members

    @property
    def awaits_mask(self) -> bool:
        return self._first.awaits_mask

    def advance(self, run: TokenRun, rows: RunRows) -> list[Event]:
        self.position += len(run.tokens)
        return [] if self.position < self._prompt_length else self._first.take_row(self, rows.last())
