"""One request on its way through the model: what it runs next, and the events that follow from what was run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial

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
from rnn_engine.sampling import (
    AllowedTokens,
    Draw,
    LogitRow,
    RowSource,
    RunRows,
    SequenceMask,
    SequenceSampler,
    random_seed,
    top_logprobs,
)
from rnn_engine.scheduler.mask_threads import MaskThreads
from rnn_engine.scheduler.member import DECODE, TAKE_IN, GivenTokens, Member, begin_scores
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.scheduler.queue import TokenDemand
from rnn_engine.scheduler.text import CUT, Answer, Ending, TokenInfos
from rnn_engine.telemetry import EngineCounters, Timing
from rnn_engine.types import F32, Drawn, State, TokenDraw, TokenRun

_CANDIDATES = 128  # that are sorted at once of a whole row
_NOT_KNOWN = (0,)  # the token of a run that follows one in flight


class LiveSequence(Member):
    """A prompt and what was generated after it; draws the tokens."""

    def __init__(
        self,
        key: int,
        request: GenerateRequest,
        slot: int,
        start: Start,
        vocab_size: int,
        infos: TokenInfos,
        read_state: Callable[[int], State],
        note_prompt_end: Callable[[], Timing],
        note_whole_row: Callable[[], None],
        counters: EngineCounters,
        mask_threads: MaskThreads,
        context: Context,
        halts: NDArray[np.uint32] | None = None,
        *,
        penalises_on_device: bool = False,
        max_draw_logprobs: int = 0,
    ) -> None:
        """`read_state` gives the state that a slot holds. `note_prompt_end` is called when the prompt has been run,
        `note_whole_row` when a draw has read a whole row. `counters` count tokens and the seconds that masks take,
        which are made on `mask_threads`.

        `context` is that of whoever asked. `halts` are the tokens that may end the text, as `Halts` makes them; None
        where the device is to draw nothing. `penalises_on_device` says whether its draws may have penalties,
        `max_draw_logprobs` how many tokens it tells with each.
        """
        super().__init__(key, request, slot, start, context)
        self._read_state = read_state
        self._note_prompt_end = note_prompt_end
        self._counters = counters
        self._seed = random_seed() if request.sampling.seed is None else request.sampling.seed
        self.sampler = SequenceSampler(
            request.sampling, self._seed, request.sampling_context(vocab_size, infos.data), note_whole_row
        )
        self._mask = _make_mask(request, vocab_size)
        self._mask_threads = mask_threads
        self._undrawn: F32 | None = None  # [V] the row from which a token is drawn when its mask is there
        self._undrawn_since = 0.0  # by `time.monotonic`
        self._answer = Answer(request, self._generated, self._mask, infos, counters)
        is_plain = self._mask is None and request.mix is None and (request.logprobs or 0) <= max_draw_logprobs
        self._all_halts = halts if is_plain else None
        self._halts = self._find_halts(penalises_on_device=penalises_on_device)
        self._num_drawing = 0  # tokens that the runs in flight draw where they come to their ends
        self._is_cut = False  # the text ends after these
        self._given: GivenTokens | None = None  # what is to be run before the next token is drawn, but for the last one
        self._scores = begin_scores(request, _CANDIDATES, infos.data)

    @property
    def members(self) -> tuple[Member, ...]:
        return (self,)

    def move(self, slots: Sequence[int], read_state: Callable[[int], State], *, penalises_on_device: bool) -> None:
        """Go on in `slots`, one for each member, which hold the states that the members had in theirs.

        No run is in flight. `read_state` and `penalises_on_device` are as in the constructor.
        """
        self._read_state = read_state
        for member, slot in zip(self.members, slots, strict=True):
            member.slot = slot
        self._halts = self._find_halts(penalises_on_device=penalises_on_device)

    def _find_halts(self, *, penalises_on_device: bool) -> NDArray[np.uint32] | None:
        """Return the tokens at which the device stops to draw; None where it is to draw nothing."""
        if self._all_halts is None or not self.sampler.draws_on_device(has_penalties=penalises_on_device):
            return None
        return self._all_halts

    def begin(self) -> list[Event]:
        """Return the events that are ready before the first step: a token, where the prompt's logits are known."""
        if self.start.logits is None:
            return self._progress()
        return [*self._progress(), *self._go_on_whole(self.start.logits)]

    @property
    def demand(self) -> TokenDemand:
        if self.decodes:
            return DECODE
        if self._given is None:
            return super().demand
        left = self._given.end - self._submitted
        if left == 1 and self._answer.ending is not None:
            return TAKE_IN
        return TokenDemand(left, 1 if self._given.is_scored else left)

    @property
    def draws_ahead(self) -> bool:
        return (self.decodes or self._num_drawing > 0) and self._halts is not None

    @property
    def awaits_token(self) -> bool:
        if self._num_drawing:  # the next run follows it, but for a state that is to be kept
            return self._submitted <= self._prompt_length and self._plan.at(self._submitted) is not None
        return super().awaits_token

    @property
    def can_run(self) -> bool:
        if self._undrawn is not None:
            return False
        if self._num_drawing:
            return not self._is_cut and self._num_left > 0 and not self.awaits_token
        return super().can_run

    @property
    def _awaits_draw(self) -> bool:
        """Whether a run in flight gives tokens of the text that nobody has seen."""
        return self._num_drawing > 0

    @property
    def _num_left(self) -> int:
        """How many more tokens may be drawn."""
        return self.request.max_tokens - len(self._generated) - self._num_drawing

    def run(self, count: int, num_draws: int = 0) -> TokenRun:
        if self.decodes or self._num_drawing:
            self.runs_in_flight += 1
            self._submitted += 1
            if num_draws and self._halts is not None:
                return self._run_and_draw(num_draws, self._halts)
            masks = None if self._mask is None else self._make_masks(1)
            return TokenRun(self.slot, (self._generated[-1],), rows=1, masks=masks)
        if self._given is None:
            return self._run_prompt(count, num_draws)
        self.runs_in_flight += 1
        start = self._submitted - self._prompt_length
        end = start + count
        self._submitted += count
        tokens = self._generated[start:end]
        if not self._given.is_scored:
            targets = self._generated[start + 1 : end + 1]
            targets.extend(tokens[-1:] if len(targets) < count else ())  # the next token is not known yet
            return TokenRun(self.slot, tokens, rows=count, targets=targets, masks=self._make_masks(count))
        is_last = self._submitted == self._given.end
        return TokenRun(self.slot, tokens, rows=int(is_last), masks=self._make_masks(1) if is_last else None)

    def _run_and_draw(self, num_draws: int, halts: NDArray[np.uint32]) -> TokenRun:
        follows = self._num_drawing > 0
        draw = self._draw_on_device(min(num_draws, self._num_left), halts, ahead=self._num_drawing)
        self._num_drawing += draw.count
        tokens = _NOT_KNOWN if follows else (self._generated[-1],)
        return TokenRun(self.slot, tokens, rows=1, draw=draw, follows=follows)

    def _run_prompt(self, count: int, num_draws: int) -> TokenRun:
        in_prompt = self._submitted < self._prompt_length
        run = super().run(count)
        at_end = in_prompt and self._submitted == self._prompt_length
        if at_end and num_draws and self._halts is not None and self.request.max_tokens > 0:
            self._num_drawing = 1
            run.draw = self._draw_on_device(1, self._halts)
        return run

    def _draw_on_device(self, count: int, halts: NDArray[np.uint32], ahead: int = 0) -> TokenDraw:
        draw = self.sampler.device_draw(count, halts, ahead)
        draw.logprobs = self.request.logprobs
        return draw

    def advance(self, run: TokenRun, rows: RunRows) -> list[Event]:
        if self.decodes:
            self.position += 1
            self._draw_from(rows.last)
            return []
        in_prompt = self.position < self._prompt_length
        if in_prompt and self._scores is not None and run.targets is not None:
            self._scores.take(rows)
        self.position += len(run.tokens)
        progress = self._progress() if in_prompt else []
        if self.position < self._prompt_length:
            return progress
        if self._given is not None:
            if run.targets is not None:
                self._given.score(rows)
            if self.position < self._given.end:
                return []
        events = self._leave_run(rows)
        return [*progress, *events] if progress else events

    def _leave_run(self, rows: RunRows) -> list[Event]:
        """Return the events at the end of a run from whose last row the next token is drawn."""
        return self._go_on(rows.last)

    def advance_drawn(self, run: TokenRun, count: int, drawn: Drawn, rows: RunRows) -> list[Event]:
        """Do as `advance`, and take in what the device has drawn after `run` of `count` tokens that it might.

        The row is that of the last token that was run. The host is to draw from it where `draws` is set then.
        """
        events = self.advance(run, rows)
        num_more = drawn.num_run - 1
        self.position += num_more
        self._submitted += num_more
        self._num_drawing -= count
        if not drawn.goes_on:  # runs in flight that follow do nothing
            self._submitted = self.position
            self._num_drawing = self.runs_in_flight = 0
        self.sampler.drew_on_device(drawn.tokens)
        goes_on = not drawn.tokens or self._answer.take_all(drawn.tokens, drawn.logprobs)
        if not drawn.is_settled:
            return events
        self.draws, self.decodes = None, True
        more = self._go_on_or_end() if goes_on else self._follow(rows.last)
        return [*events, *more] if events else more

    def take_draw(self, draw: Draw, row: RowSource) -> list[Event]:
        """Take in the token that was drawn from `row`, and those that are given after it; return the events."""
        self.draws = None
        self.decodes = True
        if not self._take(draw, row):
            return self._follow(row)
        if self._mask is None:
            return self._go_on_or_end()
        self._mask.advance()
        return self._follow(row, self._take_given(self._mask))

    def _take(self, draw: Draw, row: RowSource) -> bool:
        """Take in a token that was drawn from `row`; return False where the text ends there."""
        logprobs = self.request.logprobs
        info = self._answer.describe(draw.token)
        if logprobs is not None:
            info.logprob, info.top = draw.logprob, top_logprobs(row(), logprobs)
        return self._answer.take(info)

    def cut(self) -> bool:
        """End the text after the tokens that there are, in the next step; return False where there is none yet."""
        if self._generated and self._answer.ending is None:
            self._is_cut = True
            if self._undrawn is not None:
                self._answer.end(CUT)
            elif not self._awaits_draw:
                self._end_here()
        return len(self._generated) > 0

    def _end_here(self) -> None:
        """End the text after the tokens that there are, of which the last has not been run."""
        self._answer.end(CUT)
        self._decode_demand, self.decodes = TAKE_IN, False

    def _go_on_or_end(self) -> list[Event]:
        """Return the events of the tokens that were taken, which do not end the text by themselves."""
        if self._is_cut and not self._awaits_draw:
            self._end_here()
        return self._answer.events()

    @property
    def allowed(self) -> AllowedTokens | None:
        return None if self._mask is None or self._mask.is_late else self._mask.current

    @property
    def awaits_mask(self) -> bool:
        """Whether a row has come, and the mask of the token that is to be drawn from it has not."""
        return self._undrawn is not None

    @property
    def can_go_on(self) -> bool:
        """Whether one that awaits its mask does so no longer: it is there, or the text was cut."""
        return self._answer.ending is not None or self._mask is None or self._mask.is_known

    def go_on(self) -> list[Event]:
        """Draw the token that waited for its mask, and return the events that follow. Only if `can_go_on`."""
        assert self._undrawn is not None, "asked of one that awaits its mask"
        logits, self._undrawn = self._undrawn, None
        if self._answer.ending is not None:
            row = LogitRow.of_full(logits, _CANDIDATES)
            return [*self._answer.events(), self._finish(self._answer.ending, lambda: row)]
        if self._mask is not None:
            self._counters.mask_seconds.add(self._mask.last_seconds)
            self._counters.late_mask_seconds.add(time.monotonic() - self._undrawn_since)
            self._mask.is_late = False
        return self._draw_whole(logits)

    @property
    def own_logits(self) -> F32 | None:
        """[V] those after all tokens that were run, where one awaits its mask."""
        return self._undrawn

    def _progress(self) -> list[Event]:
        """Return the event that tells how far the prompt has come, where it is asked for."""
        if not self.request.report_progress:
            return []
        return [PromptProgress(self._prompt_length, self.start.cached_tokens, self.position)]

    def _make_masks(self, num_rows: int) -> Callable[[], NDArray[np.uint32] | None] | None:
        if self._mask is None or self._mask.forced or self._answer.ending is not None:  # nothing is drawn from the row
            return None
        self._mask_threads.add(self._mask)
        return partial(self._masks_for_last, self._mask, num_rows)

    def _masks_for_last(self, mask: SequenceMask, num_rows: int) -> NDArray[np.uint32] | None:
        if not self._mask_threads.wait(mask):
            return None
        self._counters.mask_seconds.add(mask.last_seconds)
        return mask.for_last(num_rows)

    def _go_on_whole(self, logits: F32) -> list[Event]:
        """Return the events that follow from a whole row [V], from which a token is drawn as soon as it may be."""
        if self._mask is not None and not self._mask.forced and self._answer.ending is None:
            self._mask_threads.make(self._mask)
        row = LogitRow.of_full(logits, _CANDIDATES)
        events = self._go_on(lambda: row)
        return [*events, *self._draw_whole(logits)] if self.draws else events

    def _draw_whole(self, logits: F32) -> list[Event]:
        row = LogitRow.of_full(logits, _CANDIDATES, None if self.allowed is None else self.allowed.mask)
        return self.take_draw(self.sampler.draw(row), lambda: row)

    def _draw_from(self, row: RowSource) -> None:
        """Have the next token drawn from `row`: by whoever asks for `draws`, or once its mask is there."""
        if self._mask is None or not self._mask.is_late:
            self.draws = self.sampler
        else:
            self._undrawn, self._undrawn_since = row().read_full().copy(), time.monotonic()

    def _go_on(self, row: RowSource) -> list[Event]:
        """Return the events that follow from the row after all tokens that there are, up to the draw of the next."""
        events: list[Event] = []
        if self._given is not None:
            events, self._given = self._given.events, None
        elif not self._generated:
            events = self._leave_prompt()
        if self._answer.ending is not None:
            return [*events, *self._answer.events(), self._finish(self._answer.ending, row)]
        if self._mask is not None and self._mask.forced:
            return [*events, *self._follow(row, self._take_given(self._mask))]
        self._draw_from(row)
        return events

    def _leave_prompt(self) -> list[Event]:
        """Return the events at the prompt's end."""
        events: list[Event] = [Started(self._prompt_length, self.start.cached_tokens, self._note_prompt_end())]
        if self._scores is not None:
            events.append(PromptScored(self._scores.infos))
        if self.request.max_tokens == 0:
            self._answer.end(CUT)
        return events

    def _take_given(self, mask: SequenceMask) -> list[TokenInfo]:
        """Take the tokens that come next whatever the model says; return them."""
        infos: list[TokenInfo] = []
        while mask.forced:
            for token in mask.forced:
                infos.append(self._answer.describe(token))
                self.sampler.given(token)
                if not self._answer.take(infos[-1]):
                    return infos
            mask.advance()
        return infos

    def _follow(self, row: RowSource, given: Sequence[TokenInfo] = ()) -> list[Event]:
        """Return the events of the tokens that were taken, and of the end where that is reached."""
        events, ending = self._answer.events(), self._answer.ending
        if ending is None and not given:
            return events
        self.decodes = False
        unscored: Sequence[TokenInfo] = () if self.request.logprobs is None else given
        if unscored and len(given) == len(self._generated):  # the first of all, which the prompt's last row scores
            first, *unscored = unscored
            scored_by = row()
            first.logprob = scored_by.read_full().item(first.token) - scored_by.logsumexp
            first.top = top_logprobs(scored_by, self.request.logprobs or 0)
        end = self._end_of_run(ending, unscored)
        if ending is not None and end <= self.position:
            return [*events, self._finish(ending, row)]
        self._run_given(end, ending, unscored, events)
        return [] if unscored else events

    def _run_given(self, end: int, ending: Ending | None, unscored: Sequence[TokenInfo], events: list[Event]) -> None:  # noqa: ARG002
        """Have the tokens up to `end` run; `events` are told behind those that are `unscored`."""
        self._given = GivenTokens(end, unscored, self.request.logprobs or 0, events if unscored else ())

    def _end_of_run(self, ending: Ending | None, unscored: Sequence[TokenInfo]) -> int:
        """Return up to which position tokens are run before the next one is drawn, or before the end."""
        end = self._prompt_length + len(self._generated)
        if ending is None:
            return end
        if self.request.keep_end:  # the state at the end has taken in all but what ended the text
            return end if ending.stop is None else end - 1
        return end - 1 if unscored else self.position

    def _finish(self, ending: Ending, row: RowSource) -> Finished:
        """End the sequence, where `row` is what follows from the slot's state."""
        for member in self.members:
            member.finished = True
        end = None
        if self.request.keep_end:
            logits = row().read_full().copy() if self.row is None else self.row
            end = EndState(tuple(self.tokens_run), self._read_state(self.slot), logits)
        return Finished(ending.reason, len(self._generated), self._seed, ending.stop, end, ending.stop_token)


def _make_mask(request: GenerateRequest, vocab_size: int) -> SequenceMask | None:
    if request.token_mask is None:
        return None
    ends = frozenset(request.stop_tokens) - {0}
    return SequenceMask(request.token_mask(), vocab_size, ends, may_force=request.mix is None)
