"""What runs the tokens of a sequence from a further state of its mix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnn_engine.requests import Event, GenerateRequest
from rnn_engine.sampling import RunRows
from rnn_engine.scheduler.member import TAKE_IN, Member
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.types import TokenRun

if TYPE_CHECKING:
    from rnn_engine.scheduler.sequence import LiveSequence


class Follower(Member):
    """Runs what `first` has drawn, and hands it the row of each next token."""

    def __init__(self, first: LiveSequence, request: GenerateRequest, slot: int, start: Start) -> None:
        super().__init__(first.key, request, slot, start, first.context)
        self._first = first
        self._generated = first._generated
        self._decode_demand = TAKE_IN

    @property
    def members(self) -> tuple[Member, ...]:
        return self._first.members

    def advance(self, run: TokenRun, rows: RunRows) -> list[Event]:
        self.position += len(run.tokens)
        return [] if self.position < self._prompt_length else self._first.take_row(self, rows.last())
