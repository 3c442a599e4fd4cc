"""What becomes of a step's runs: each takes in its rows, and the tokens that follow are drawn for all together."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rnn_engine.draws import NOTHING_DRAWN, Drawn
from rnn_engine.errors import MaskError, StepError
from rnn_engine.requests import Event
from rnn_engine.sampling import JointDraws, LogitRow, RowSource, RunRows
from rnn_engine.scheduler.member import Member
from rnn_engine.scheduler.sequence import LiveSequence
from rnn_engine.scheduler.step_seconds import StepTimes
from rnn_engine.types import F32, Readout, Ticket, TokenRun

logger = logging.getLogger(__name__)

_UNSOUND = (
    "the model's logits are not finite for this request; expected a prompt and an initial state that keep them so"
)


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that was submitted and not yet collected."""

    ticket: Ticket
    times: StepTimes
    live: Sequence[Member]  # whose runs are those of `batch`
    batch: Sequence[TokenRun]


@dataclass(slots=True, eq=False)
class RunOutcome:
    """What follows from a run: events, or an error that ends its request alone."""

    live: Member
    row: RowSource  # the last of the run
    events: Sequence[Event] = ()
    error: Exception | None = None
    is_sound: bool = True

    def read_logits(self) -> F32:
        """Return the logits [V] after the run."""
        return self.row().read_full()


def take_in(
    step: StepInFlight,
    readout: Readout,
    vocab_size: int,
    draws: JointDraws,
) -> Iterator[RunOutcome]:
    """Give each run of a step its rows, and yield what follows from those that are still wanted.

    An outcome must be concluded before the next one is asked for, since it may release the members of its request.
    """
    drawing: list[tuple[RunOutcome, RunRows]] = []
    first = 0
    on_device = readout.drawn or [NOTHING_DRAWN] * len(step.batch)
    for live, run, drawn, is_sound in zip(step.live, step.batch, on_device, readout.sound.tolist(), strict=True):
        rows = RunRows(readout, first, run.rows, vocab_size)
        first += run.rows
        if live.released or drawn.num_run == 0:
            continue
        live.runs_in_flight -= 1
        outcome = RunOutcome(live, rows.last)
        if not is_sound and live.drop_draft():  # without it, the numbers may be finite
            yield outcome
            continue
        if is_sound or drawn.tokens:
            _advance(outcome, run, drawn, rows)
        if not is_sound and outcome.error is None:
            outcome.error, outcome.is_sound = StepError(_UNSOUND), False
        if live.draws is None or outcome.error is not None:
            yield outcome
        else:
            drawing.append((outcome, rows))
    samplers = [outcome.live.draws for outcome, _ in drawing if outcome.live.draws is not None]
    joint = draws.draw(samplers, [rows for _, rows in drawing])
    for (outcome, rows), sampler, draw in zip(drawing, samplers, joint, strict=True):
        assert isinstance(outcome.live, LiveSequence), "no other member draws"
        try:
            events = outcome.live.take_draw(draw or sampler.draw(rows.last()), rows.last)
            outcome.events = [*outcome.events, *events] if outcome.events else events
        except Exception as error:
            _fail(outcome, error)
        yield outcome


def go_on(live: LiveSequence) -> RunOutcome:
    """Return what follows from a row whose mask is there now; to be concluded as those of a step."""
    logits = live.own_logits
    assert logits is not None, "asked of one that awaits its mask"
    outcome = RunOutcome(live, partial(LogitRow.of_full, logits, 1))
    try:
        outcome.events = live.go_on()
    except Exception as error:
        _fail(outcome, error)
    return outcome


def _advance(outcome: RunOutcome, run: TokenRun, drawn: Drawn, rows: RunRows) -> None:
    live = outcome.live
    try:
        if run.masks is not None:
            rows.allowed = live.allowed
        if run.draw is None:
            outcome.events = live.advance(run, rows)
        else:
            assert isinstance(live, LiveSequence), "no other member draws"
            outcome.events = live.advance_drawn(run, run.draw.count, drawn, rows)
    except Exception as error:
        _fail(outcome, error)


def _fail(outcome: RunOutcome, error: Exception) -> None:
    outcome.error = error
    if isinstance(error, MaskError):
        outcome.live.context.run(logger.info, "a request ends at its mask: %s", error)
    else:
        outcome.live.context.run(logger.exception, "a request failed after its step")
