"""What becomes of a step's runs: each takes in its rows, and the tokens that follow are drawn for all together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from rnn_engine.requests import Event
from rnn_engine.sampling import Draw, JointDraws, RunRows, SequenceSampler
from rnn_engine.scheduler.member import Member
from rnn_engine.scheduler.sequence import LiveSequence
from rnn_engine.types import F32, TokenRun

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RunOutcome:
    """A run whose rows are sound, and what follows from them: events, or an error that ends its request alone."""

    live: Member
    run: TokenRun
    rows: RunRows
    events: list[Event] = field(default_factory=list)
    num_generated: int = 0
    error: Exception | None = None

    def read_logits(self) -> F32:
        """Return the logits [V] after the run."""
        return self.rows.last().read_full()

    def take_rows(self) -> None:
        """Give the run its rows."""
        try:
            if self.run.masks is not None:
                self.rows.allowed = self.live.allowed
            before = self.live.num_generated
            self.events = self.live.advance(self.run, self.rows)
            self.num_generated = self.live.num_generated - before
        except Exception as error:
            self._fail(error)

    def take_draw(self, sampler: SequenceSampler, draw: Draw | None) -> None:
        """Give a sequence the token that was drawn for it; None: have `sampler` draw it."""
        assert isinstance(self.live, LiveSequence), "a follower never draws"
        try:
            before = self.live.num_generated
            self.events += self.live.take_draw(draw or sampler.draw(self.rows.last()), self.rows.last)
            self.num_generated = self.live.num_generated - before
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.live.context.run(logger.exception, "a request failed after its step")


def draw_tokens(outcomes: Sequence[RunOutcome], draws: JointDraws) -> None:
    """Draw the tokens of sequences that need one, and give them theirs."""
    samplers = [outcome.live.draws for outcome in outcomes if outcome.live.draws is not None]
    drawn = draws.draw(samplers, [outcome.rows for outcome in outcomes])
    for outcome, sampler, draw in zip(outcomes, samplers, drawn, strict=True):
        outcome.take_draw(sampler, draw)
