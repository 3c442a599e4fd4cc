"""The sequences of one running request: the tokens that each runs in its slot, and the events that follow.

A request is one sequence, or one for each state that it mixes (`mixed.py`). A sequence's phase (`phases.py`) decides
what it runs next. This module has what a sequence knows, and what follows from the row after all of its tokens.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rnn_engine.requests import (
    EndState,
    Event,
    Finished,
    GenerateRequest,
    PromptProgress,
    PromptScored,
    Started,
    TokenInfo,
)
from rnn_engine.sampling.masks import AllowedTokens, SequenceMask
from rnn_engine.sampling.ranking import LogitRow, RowSource, RunRows, top_logprobs
from rnn_engine.sampling.sequence_sampler import Draw, SequenceSampler, random_seed
from rnn_engine.scheduler.checkpoints import CheckpointPoint
from rnn_engine.scheduler.mask_threads import MaskThreads
from rnn_engine.scheduler.meter import Meter
from rnn_engine.scheduler.phases import (
    AnyPhase,
    AwaitMask,
    Closing,
    Decode,
    DeviceDecode,
    Done,
    Given,
    HostDecode,
    Prompt,
    PromptScores,
    begin_scores,
    may_follow,
)
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.scheduler.text import CUT, Answer, Ending, Halts, TokenInfos
from rnn_engine.telemetry import SlotUse, Timing
from rnn_engine.types import F32, Drawn, Runner, TokenRun
from rnn_engine_states.cache.checkpoint import CheckpointKind

if TYPE_CHECKING:
    from rnn_engine.scheduler.slots import LoraPlaces

_CANDIDATES = 128  # that are sorted at once of a whole row
Next = TypeVar("Next", bound=AnyPhase)


class SlotSequence(ABC):
    """Base of sequences, run in one slot: the scheduler calls `phase.run`, then `advance` and `passed`."""

    scores: PromptScores | None = None

    def __init__(self, key: int, request: GenerateRequest, slot: int, start: Start, context: Context) -> None:
        """Prepare to run `request`, or one part of it, in `slot`. `key` and `context` are the whole request's.

        `context` is the caller's.
        """
        self.key = key
        self.request = request
        self.slot = slot
        self.start = start
        self.context = context
        self.prompt_length = len(request.prompt)
        self.plan = start.plan
        self.generated = array("I")  # 4 bytes a token: a text may be as long as its client likes
        self.position = start.cached_tokens  # tokens that have been run
        self.submitted = start.cached_tokens  # tokens that have been run or are in flight
        self.in_flight: deque[AnyPhase] = deque()  # the phase of each run in flight that does something, oldest first
        self.phase: AnyPhase = Prompt()
        self.draws: SequenceSampler | None = None  # draws the next token from the row that has just come
        self.row: F32 | None = None  # [V] of a mix: the row of the next token, until that is drawn
        self.lora: int | None = None  # the place of the LoRA with which it runs
        self.released = False  # it has no slot, and the outcome of its runs in flight is not wanted

    @property
    @abstractmethod
    def sequences(self) -> tuple[SlotSequence, ...]:
        """All sequences of the request, the one that draws tokens first. They begin, pause and end together."""

    @abstractmethod
    def take_rows(self, rows: RunRows) -> list[Event]:
        """Process a run's rows, the last of which gives the next token; return the events that follow."""

    @abstractmethod
    def leave_prompt(self, run: TokenRun, num_draws: int) -> None:
        """Enter the phase after the prompt, because `run`, the prompt's last run, is about to be submitted."""

    def enter(self, phase: Next) -> Next:
        """Change the sequence's phase to `phase`, which must be one that may follow the current one; return it."""
        assert may_follow(type(self.phase), type(phase)), f"{phase} may not follow {self.phase}"
        self.phase = phase
        return phase

    def advance(self, run: TokenRun, rows: RunRows) -> list[Event]:
        """Process the logit rows of `run`, the sequence's oldest run in flight; return the events that follow."""
        return self.in_flight.popleft().take(self, run, rows)

    @property
    def end(self) -> int:
        return self.prompt_length + len(self.generated)

    @property
    def finished(self) -> bool:
        return isinstance(self.phase, Done)

    @property
    def tokens_run(self) -> list[int]:
        """The tokens of the prompt and the answer that have been run, and so are part of the state in the slot."""
        return [*self.request.prompt, *self.generated][: self.position]

    @property
    def allowed(self) -> AllowedTokens | None:
        """The tokens that may come next; None allows all. Raises the error with which computing the mask failed."""
        return None

    @property
    def awaits_mask(self) -> bool:
        """True if the logit row of the next token has arrived and the token's mask has not been computed."""
        return isinstance(self.phase, AwaitMask)

    @property
    def may_be_due(self) -> bool:
        """True if a state may have to be saved at this position, which is never so within an answer; see `due`."""
        return self.position <= self.prompt_length or self.finished

    @property
    def due(self) -> CheckpointPoint | None:
        """The checkpoint to make now, before the slot's state changes; None if none is planned at this position."""
        if (point := self.plan.at(self.position)) is not None:
            return point
        if self.finished and self.position > self.prompt_length:
            return CheckpointPoint(self.position, CheckpointKind.GENERATION_END, logits=True)
        return None

    def passed(self) -> None:
        """Record that the state at the sequence's position was saved, if a checkpoint was due there."""
        if self.plan.position < self.prompt_length:
            self.plan.advance(self.position)

    def use(self, *, paused: bool) -> SlotUse:
        """Return a `SlotUse`: the slot, its request, and the request's progress. May be called on any thread."""
        return SlotUse(
            slot=self.slot,
            request=self.key,
            scope=self.request.cache_scope,
            paused=paused,
            prompt_tokens=self.prompt_length,
            cached_tokens=self.start.cached_tokens,
            run_tokens=self.position,
            generated_tokens=len(self.generated),
            max_tokens=self.request.max_tokens,
        )

    def drop_draft(self) -> bool:
        """Undo the run just collected if it had a draft, and stop making drafts; return True if it had a draft."""
        return False

    def close(self) -> None:
        """Let no other prompt wait for this sequence's prompt any more, because the sequence runs no more."""
        self.plan.close()

    def progress(self) -> list[Event]:
        """Return the event that reports how much of the prompt was run, or an empty list if it is not requested."""
        return []

    def make_masks(self, num_rows: int) -> Callable[[], NDArray[np.uint32] | None] | None:  # noqa: ARG002
        """Return a function that makes the masks of the next run's rows, or None if there are none."""
        return None


@dataclass(slots=True, eq=False)
class Shared:
    """What all sequences of one scheduler share."""

    runner: Runner  # another one of the same model after the device was opened again
    infos: TokenInfos
    halts: Halts  # finds the tokens that may end a text
    meter: Meter
    mask_threads: MaskThreads
    loras: LoraPlaces


class SamplingSequence(SlotSequence):
    """A sequence that draws its own next tokens and makes the events of its request."""

    _decode_phase: type[Decode[Any]] = HostDecode  # runs drawn tokens
    _given_phase = Given  # runs tokens that are known without a draw
    _stays_on_device = True  # once the device draws, it keeps drawing

    def __init__(
        self,
        key: int,
        request: GenerateRequest,
        slot: int,
        start: Start,
        context: Context,
        shared: Shared,
        note_prompt_end: Callable[[], Timing],
    ) -> None:
        """Prepare to run `request` in `slot` from `start`; call `note_prompt_end` after the prompt."""
        super().__init__(key, request, slot, start, context)
        self._shared = shared
        self._note_prompt_end = note_prompt_end
        self._counters = shared.meter.counters
        self._seed = random_seed() if request.sampling.seed is None else request.sampling.seed
        vocab_size, infos = shared.runner.shape.vocab_size, shared.infos
        sampling_context = request.sampling_context(vocab_size, infos.data)
        self.sampler = SequenceSampler(request.sampling, self._seed, sampling_context, shared.meter.read_whole_row)
        self._mask = _make_mask(request, vocab_size)
        self._mask_threads = shared.mask_threads
        self.answer = Answer(request, self.generated, self._mask, infos, self._counters)
        self.halts = self._find_halts()  # tokens after which the device stops drawing; None if it may not draw
        self.is_cut = False  # the text ends after the tokens that are known or being drawn now
        self.scores = begin_scores(request, _CANDIDATES, infos.data)
        self.device = DeviceDecode()
        self.decode = self._decode_phase()

    @property
    def sequences(self) -> tuple[SlotSequence, ...]:
        return (self,)

    def move(self, slots: Sequence[int]) -> None:
        """Go on in `slots`, to which the states of the suspended sequences were written. No run may be in flight."""
        if self.phase is self.device:
            self.enter(self.decode)
        for sequence, slot in zip(self.sequences, slots, strict=True):
            sequence.slot = slot
        self.halts = self._find_halts()

    def _find_halts(self) -> NDArray[np.uint32] | None:
        runner, request = self._shared.runner, self.request
        is_plain = self._mask is None and request.mix is None and (request.logprobs or 0) <= runner.max_draw_logprobs
        if not is_plain or runner.max_draws == 0:
            return None
        if request.tool_format is not None and request.stop_bytes:  # a call that may begin decides later if one stops
            return None
        has_penalties = self.slot < runner.num_penalty_slots
        return self._shared.halts.of(request) if self.sampler.draws_on_device(has_penalties=has_penalties) else None

    def begin(self) -> list[Event]:
        """Return the request's events before its first step. They include a token if the whole prompt was cached."""
        if self.start.logits is None:
            return self.progress()
        return [*self.progress(), *self._go_on_whole(self.start.logits)]

    def leave_prompt(self, run: TokenRun, num_draws: int) -> None:
        if num_draws and self.halts is not None and self.request.max_tokens > 0:
            self.enter(self.device).draw(self, run, 1)
        else:
            self.enter(self.decode)

    def take_rows(self, rows: RunRows) -> list[Event]:
        return self.go_on(rows.last)

    def advance_drawn(self, run: TokenRun, count: int, drawn: Drawn, rows: RunRows) -> list[Event]:
        """Process the logit rows of `run`, and the tokens that the device drew after it, at most `count` of them.

        Return the events that follow. The last of `rows` is the row of the last token that was run. The host draws from
        it if `draws` is set on return.
        """
        events = self.advance(run, rows)
        num_more = drawn.num_run - 1
        self.position += num_more
        self.submitted += num_more
        self.device.num_drawing -= count
        if not drawn.goes_on:  # runs in flight that follow do nothing
            self.submitted = self.position
            self.device.num_drawing = 0
            self.in_flight.clear()
        self.sampler.drew_on_device(drawn.tokens)
        goes_on = not drawn.tokens or self.answer.take_all(drawn.tokens, drawn.logprobs)
        if self.device.num_drawing == 0 and not (goes_on and drawn.is_settled and self._stays_on_device):
            self.enter(self.decode)
        if not drawn.is_settled:
            return events
        self.draws = None
        more = self._go_on_or_end() if goes_on else self._follow(rows.last)
        return [*events, *more] if events else more

    def take_draw(self, draw: Draw, row: RowSource) -> list[Event]:
        """Add a token drawn from `row` to the answer, and the tokens that are forced after it; return the events."""
        self.draws = None
        if self.phase is not self.decode:
            self.enter(self.decode)
        if not self._take(draw, row):
            return self._follow(row)
        if self._mask is None:
            return self._go_on_or_end()
        self._mask.advance()
        return self._follow(row, self._take_forced(self._mask))

    def _take(self, draw: Draw, row: RowSource) -> bool:
        """Add a token drawn from `row` to the answer; return False if it ends the text."""
        logprobs = self.request.logprobs
        info = self.answer.describe(draw.token)
        if logprobs is not None:
            info.logprob, info.top = draw.logprob, top_logprobs(row(), logprobs)
        return self.answer.take(info)

    def cut(self) -> bool:
        """End the text after the tokens generated so far, in the next step; return False if there are none yet."""
        if self.generated and self.answer.ending is None:
            self.is_cut = True
            if self.awaits_mask:
                self.answer.end(CUT)
            elif not self.awaits_draw:
                self._end_here()
        return len(self.generated) > 0

    @property
    def can_follow(self) -> bool:
        """True if a run can begin with a token that the device draws in a run in flight."""
        return self._shared.runner.steps_at_once == 1

    @property
    def awaits_draw(self) -> bool:
        """True if the device draws tokens of this sequence in a run in flight, which the host does not know yet."""
        return self.device.num_drawing > 0

    def _end_here(self) -> None:
        """End the text after the known tokens. Those that were not run are run later, for the state at the end."""
        self.answer.end(CUT)
        if isinstance(self.phase, HostDecode):
            self.enter(Closing(self.end))

    def _go_on_or_end(self) -> list[Event]:
        """Return the events of new tokens that do not end the text; end it if it was cut and no draw is in flight."""
        if self.is_cut and not self.awaits_draw:
            self._end_here()
        return self.answer.events()

    @property
    def allowed(self) -> AllowedTokens | None:
        return None if self._mask is None or self._mask.is_late else self._mask.current

    @property
    def can_go_on(self) -> bool:
        """True if the sequence, which waits for a token mask, can continue: the mask is there, or the text was cut."""
        return self.answer.ending is not None or self._mask is None or self._mask.is_known

    @property
    def own_logits(self) -> F32 | None:
        """The logits [V] for the next token while the sequence waits for the token's mask; None at other times."""
        return self.phase.logits if isinstance(self.phase, AwaitMask) else None

    def draw_late(self) -> list[Event]:
        """Draw the token that waited for its mask; return the events that follow. Call it only if `can_go_on`."""
        phase = self.phase
        assert isinstance(phase, AwaitMask), "asked of a sequence that awaits its mask"
        if self.answer.ending is not None:
            row = LogitRow.of_full(phase.logits, _CANDIDATES)
            return [*self.answer.events(), self._finish(self.answer.ending, lambda: row)]
        if self._mask is not None:
            self._counters.mask_seconds.add(self._mask.last_seconds)
            self._counters.late_mask_seconds.add(time.monotonic() - phase.since)
            self._mask.is_late = False
        return self._draw_whole(phase.logits)

    def progress(self) -> list[Event]:
        if not self.request.report_progress:
            return []
        return [PromptProgress(self.prompt_length, self.start.cached_tokens, self.position)]

    def make_masks(self, num_rows: int) -> Callable[[], NDArray[np.uint32] | None] | None:
        if self._mask is None or self._mask.forced or self.answer.ending is not None:  # nothing is drawn from the row
            return None
        self._mask_threads.add(self._mask)
        return partial(self._masks_for_last, self._mask, num_rows)

    def _masks_for_last(self, mask: SequenceMask, num_rows: int) -> NDArray[np.uint32] | None:
        if not self._mask_threads.wait(mask):
            return None
        self._counters.mask_seconds.add(mask.last_seconds)
        return mask.for_last(num_rows)

    def _go_on_whole(self, logits: F32) -> list[Event]:
        """Continue from a whole row of logits [V], drawing a token unless its mask is late; return the events."""
        if self._mask is not None and not self._mask.forced and self.answer.ending is None:
            self._mask_threads.make(self._mask)
        row = LogitRow.of_full(logits, _CANDIDATES)
        events = self.go_on(lambda: row)
        return [*events, *self._draw_whole(logits)] if self.draws else events

    def _draw_whole(self, logits: F32) -> list[Event]:
        row = LogitRow.of_full(logits, _CANDIDATES, None if self.allowed is None else self.allowed.mask)
        return self.take_draw(self.sampler.draw(row), lambda: row)

    def draw_from(self, row: RowSource) -> None:
        """Set `draws`, so that the next token is drawn from `row`, or wait for its mask if that is late."""
        if self._mask is None or not self._mask.is_late:
            self.draws = self.sampler
        else:
            self.enter(AwaitMask(row().read_full().copy()))

    def go_on(self, row: RowSource) -> list[Event]:
        """Continue from the row after all known tokens: end, take forced tokens or draw; return the events."""
        events = [] if self.generated else self._end_prompt()
        if self.answer.ending is not None:
            return [*events, *self.answer.events(), self._finish(self.answer.ending, row)]
        if self._mask is not None and self._mask.forced:
            return [*events, *self._follow(row, self._take_forced(self._mask))]
        self.draw_from(row)
        return events

    def _end_prompt(self) -> list[Event]:
        """Return the events at the end of the prompt: `Started`, and `PromptScored` if the prompt is scored."""
        timing = self._note_prompt_end()
        events: list[Event] = [Started(self.prompt_length, self.start.cached_tokens, timing, self.request.left_out)]
        if self.scores is not None:
            events.append(PromptScored(self.scores.infos))
        if self.request.max_tokens == 0:
            self.answer.end(CUT)
        return events

    def _take_forced(self, mask: SequenceMask) -> list[TokenInfo]:
        """Add the tokens that the mask forces next to the answer, whatever the model's logits are; return them."""
        infos: list[TokenInfo] = []
        while mask.forced:
            for token in mask.forced:
                infos.append(self.answer.describe(token))
                self.sampler.given(token)
                if not self.answer.take(infos[-1]):
                    return infos
            mask.advance()
        return infos

    def _follow(self, row: RowSource, forced: Sequence[TokenInfo] = ()) -> list[Event]:
        """Enter the phase that follows after tokens were added to the answer; return the events to deliver now.

        The last of the tokens are `forced`. If the text has ended, the events may include its end.
        """
        events, ending = self.answer.events(), self.answer.ending
        if ending is None and not forced:
            return events
        unscored: Sequence[TokenInfo] = () if self.request.logprobs is None else forced
        if unscored and len(forced) == len(self.generated):  # the answer's first token, scored by the prompt's last row
            first, *unscored = unscored
            scored_by = row()
            first.logprob = scored_by.read_full().item(first.token) - scored_by.logsumexp
            first.top = top_logprobs(scored_by, self.request.logprobs or 0)
        end = self._end_of_run(ending, unscored)
        if ending is not None and end <= self.position:
            return [*events, self._finish(ending, row)]
        waiting = events if unscored else ()
        if ending is None:
            self.enter(self._given_phase(end, unscored, waiting))
        else:
            self._close(end, unscored, waiting)
        return [] if unscored else events

    def _close(self, end: int, unscored: Sequence[TokenInfo] = (), events: Sequence[Event] = ()) -> None:
        """Run the last tokens of an ended text up to `end`; `events` wait for the scores of `unscored` tokens."""
        self.enter(Closing(end, unscored, events))

    def _end_of_run(self, ending: Ending | None, unscored: Sequence[TokenInfo]) -> int:
        """Return up to where the known tokens must be run before the next draw, or before the given `ending`."""
        if ending is None:
            return self.end
        if self.request.keep_end:  # the state at the end has all tokens except the one that ended the text
            return self.end if ending.stop is None else self.end - 1
        return self.end - 1 if unscored else self.position

    def _finish(self, ending: Ending, row: RowSource) -> Finished:
        """End the request and return its last event. `row` returns the logit row after the state in the slot."""
        for sequence in self.sequences:
            sequence.enter(Done())
        end = last_row = None
        if self.request.keep_end or self.request.keep_row:
            last_row = row().read_full().copy() if self.row is None else self.row
        if self.request.keep_end and last_row is not None:
            end = EndState(tuple(self.tokens_run), self._shared.runner.start_read(self.slot), last_row)
        count, stop_token = len(self.generated), ending.stop_token
        return Finished(ending.reason, count, self._seed, ending.stop, end, stop_token, row=last_row)


def _make_mask(request: GenerateRequest, vocab_size: int) -> SequenceMask | None:
    if request.token_mask is None:
        return None
    return SequenceMask(request.token_mask(), vocab_size, request.stop_tokens, may_force=request.mix is None)
