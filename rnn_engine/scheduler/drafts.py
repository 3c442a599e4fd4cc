"""Speculative decoding: the choice of sequences that run drafts of their next tokens, and the check of these drafts.

The run of a draft yields a logit row for each of its tokens. The tokens drawn from these rows count up to and including
the first that differs from the draft. What was run after the token before that one does not count: a recurrent state
can't be cut back. So the state is copied to a spare slot before the run. If the draft was wrong, the tokens that count
are run again from the copy, in the next step and together with what follows them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeAlias

from rnn_engine.requests import Event, Finished, GenerateRequest, TokenInfo
from rnn_engine.sampling.masks import Mask, stack_masks
from rnn_engine.sampling.ranking import RowSource, RunRows
from rnn_engine.scheduler.draft_sources import EarlierText, Experience, Lookup
from rnn_engine.scheduler.meter import StepCosts, StepTimes
from rnn_engine.scheduler.phases import AnyPhase, Draft, Given, HostDecode
from rnn_engine.scheduler.queue import DraftDemand, TokenDemand
from rnn_engine.scheduler.sequence import SamplingSequence, SlotSequence
from rnn_engine.scheduler.text import Ending
from rnn_engine.types import Runner, TokenRun

logger = logging.getLogger(__name__)

_LEAST_GAIN = 1.05  # times the tokens a second without a draft; above 1, since the measured times are not exact
_LEAST_SECONDS = 1e-9  # of a step, by any clock
_CHANCES = 32  # a chance is rounded to a multiple of 1 / 32
_KEPT = 1024  # cached results of `_find_longest`
_OFTEN = 16  # steps after which these are computed anew
_REST = 2  # tokens that pass after a look-up without a prediction
_OFF = 0

FindEarlier: TypeAlias = Callable[[GenerateRequest, Sequence[int]], Sequence[int]]
"""Returns the tokens that followed a request's prompt and its generated tokens in an earlier request."""


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """Settings for drafts: the most tokens of one draft, and the runner's slots reserved for copies of states."""

    max_tokens: int = _OFF
    spare_slots: Sequence[int] = ()


NO_DRAFTS = DraftSettings()


class Drafter:
    """Proposes drafts of one sequence's next tokens, and holds a copy of its state while a draft is run."""

    def __init__(self, drafts: Drafts, request: GenerateRequest, find_earlier: FindEarlier) -> None:
        self.draft: Sequence[int] = ()  # for the next step, after the tokens that are certain
        self.num_drafted = 0  # tokens that were run
        self.num_accepted = 0  # those of them that were drawn
        self.spare: int | None = None  # the slot that holds the state from before the run of a draft
        self._drafts = drafts
        self._most = drafts.max_tokens if request.speculate is None else min(request.speculate, drafts.max_tokens)
        self._max_tokens = request.max_tokens
        self._ends = frozenset(request.stop_tokens)
        # The first source that predicts anything is used: an earlier equal text is more reliable than a repetition.
        self._sources: list[EarlierText | Lookup] = [EarlierText(partial(find_earlier, request))]
        # The tokens that a grammar leaves open seldom repeat, and looking for repetitions costs as much as it gains.
        if request.token_mask is None:
            self._sources.append(Lookup(request.prompt, drafts.experience))
        self._num_known = 0  # tokens of the answer that the sources know
        self._next_look = 0  # number of tokens at which to look again
        self.chance = 0.0  # that a token of the last proposed draft is drawn if those before it are
        self.is_off = False  # nothing will be drafted any more

    def look(self, generated: Sequence[int]) -> bool:
        """Pass the tokens generated so far to the sources of predictions; return True if a draft can be proposed."""
        if self.is_off or len(generated) < self._next_look:
            return False
        if len(generated) > self._num_known:
            for source in self._sources:
                source.extend(generated, self._num_known)
            self._num_known = len(generated)
        self.is_off = all(source.is_over for source in self._sources)
        foretells = any(source.foretells for source in self._sources)
        self._next_look = len(generated) + (0 if foretells else _REST)
        return foretells

    def propose(self, num_generated: int, most: int) -> list[int]:
        """Return a draft of at most `most` tokens, which follows the tokens generated so far.

        Call this only after `look` returned True. `most` is at least 1. The draft leaves out at least the last token
        that the text may have, and everything from the first stop token on.
        """
        assert most > 0, "the step has no room for a draft"
        source = next(one for one in self._sources if one.foretells)
        self.chance = source.chance
        draft = source.draft(min(self._most, most, self._max_tokens - num_generated - 1)) if self.chance else []
        # A draft ends before the first stop token, so that the state at the end of the text has no token after it.
        if self._ends.isdisjoint(draft):
            return draft
        return draft[: next(place for place, token in enumerate(draft) if token in self._ends)]

    def branch(self, slot: int) -> bool:
        """Copy the sequence's state from `slot` to a spare slot before a draft is run; return False if that fails."""
        spare = self._drafts.spare.pop()
        try:
            self._drafts.runner.copy_state(slot, spare)
        except Exception:
            logger.exception("a state was not copied; its sequence goes on without a draft")
            self._drafts.spare.append(spare)
            return False
        self.spare = spare
        return True

    def join(self) -> None:
        """Free the spare slot of the copy once it is not needed. Idempotent."""
        if self.spare is not None:
            self._drafts.spare.append(self.spare)
            self.spare = None

    def go_back(self, slot: int) -> None:
        """Restore the state in `slot` to what it was before the draft was run, and free the copy's spare slot."""
        assert self.spare is not None, "no draft was run"
        self._drafts.runner.copy_state(self.spare, slot)
        self.join()


class Drafts:
    """The spare slots and the measured times of steps that the sequences of one scheduler share for their drafts."""

    def __init__(self, runner: Runner, settings: DraftSettings) -> None:
        self.max_tokens = settings.max_tokens if settings.spare_slots else _OFF
        self.runner = runner
        self.spare = list(settings.spare_slots)
        self.experience = Experience()  # with texts that repeat themselves
        self._plain = StepCosts()  # of steps without drafts that run one token of each sequence
        self._longer = StepCosts()  # of those with drafts, or with tokens that are run again
        self._num_noted = 0
        self._pays: dict[int, bool] = {}  # by the number of runs; valid for the present times of steps
        self._find_longest = lru_cache(_KEPT)(partial(_find_longest, self._plain, self._longer))  # likewise

    def replace_runner(self, runner: Runner) -> None:
        """Use another runner of the same model, which may have fewer spare slots. None of them may be in use."""
        self.runner = runner
        self.spare = [slot for slot in self.spare if slot < runner.num_slots]

    def drafter_of(self, request: GenerateRequest, find_earlier: FindEarlier) -> Drafter | None:
        """Return a sequence's drafter, or None if no drafts are allowed. `find_earlier` finds an equal earlier text."""
        if _OFF in (self.max_tokens, request.speculate) or request.mix is not None:
            return None
        if request.token_mask is not None and request.logprobs is not None:
            return None  # the forced tokens of a draft would have to be scored
        return Drafter(self, request, find_earlier)

    def note_step(self, times: StepTimes, now: float) -> None:
        """Update the mean durations with a step, unless it ran prompts, that was processed at the time `now`."""
        if self.max_tokens == _OFF:
            return
        self._num_noted += 1
        if self._num_noted % _OFTEN == 0:
            self._find_longest.cache_clear()
            self._pays.clear()
        if times.is_decode:
            (self._plain if times.is_plain else self._longer).note(
                times.tokens, max(times.cost(now), _LEAST_SECONDS) / times.num_steps
            )

    @property
    def is_on(self) -> bool:
        """True if a spare slot is free, so that a draft can be run."""
        return len(self.spare) > 0

    def may_pay(self, num_runs: int) -> bool:
        """Return True if a fully correct draft would speed up a step in which `num_runs` sequences decode."""
        if not self.is_on:
            return False
        if num_runs not in self._pays:
            known = self._plain.of(num_runs) is not None
            self._pays[num_runs] = known and self.plan(num_runs, num_runs, 0).take(self.max_tokens, 1.0) > 0
        return self._pays[num_runs]

    def plan(self, num_runs: int, num_tokens: int, num_others: int) -> DraftPlan:
        """Return an empty `DraftPlan`, which drafts are added to, for a step in which `num_runs` sequences decode.

        `may_pay` must be True for `num_runs`. Without drafts, these sequences run `num_tokens`: one each, and those
        that must be run again. `num_others` further sequences run prompts. A draft delays these too, so it must gain as
        much as if they decoded.
        """
        room = min(self.runner.max_tokens, self.runner.max_rows) - num_tokens - num_others
        return DraftPlan(self._find_longest, num_runs, num_tokens, num_runs + num_others, room, len(self.spare))


@dataclass(slots=True)
class DraftPlan:
    """Decides which drafts are added to a step, and how long, for the most tokens a second, as far as there is room."""

    _find_longest: Callable[[int, int, float, int, float], int]  # that of `Drafts`
    _num_runs: int  # sequences that decode
    _num_tokens: int
    _gained: float  # tokens that the step is expected to draw
    room: int  # tokens that can be added
    _num_left: int  # spare slots

    @property
    def is_full(self) -> bool:
        return self._num_left == 0 or self.room <= 0

    def take(self, longest: int, chance: float) -> int:
        """Add a draft of at most `longest` tokens, each right with `chance`; return its length, 0 if none pays."""
        longest, chance = min(longest, self.room), round(chance * _CHANCES) / _CHANCES
        if longest <= 0:
            return 0
        best = self._find_longest(self._num_runs, self._num_tokens, self._gained, longest, chance)
        if best:
            self.room -= best
            self._num_left -= 1
            self._num_tokens += best
            self._gained += _expected(best, chance)
        return best


def _expected(count: int, chance: float) -> float:
    """Return the expected number of tokens before the first wrong one; each next is correct with chance `chance`."""
    return float(count) if chance >= 1.0 else chance * (1.0 - chance**count) / (1.0 - chance)


def _expected_again(count: int, chance: float) -> float:
    """Return how many tokens a wrong draft is expected to run again: the one before it, and its correct ones."""
    return 0.0 if chance >= 1.0 else (1.0 - chance**count) / (1.0 - chance) - count * chance**count


def _find_longest(
    plain: StepCosts, longer: StepCosts, num_runs: int, num_tokens: int, gained: float, longest: int, chance: float
) -> int:
    """Return the length of a draft with which a step draws the most tokens per second; 0 if no draft is worth its time.

    The lengths tried are `longest`, half of it, and so on. Each token of the draft is correct with probability
    `chance`. The draft is added to a step of `num_tokens` that is expected to draw `gained` tokens. `plain` are the
    costs of steps without drafts, `longer` those of steps with drafts.
    """
    seconds = plain.of(num_runs)
    assert seconds is not None, "nothing is known that may pay"
    without = longer.beyond(num_runs, seconds, num_tokens)
    best, best_rate, count = 0, _LEAST_GAIN * gained / without, longest
    while count > 0:
        together = longer.beyond(num_runs, seconds, num_tokens + count)
        more = _expected_again(count, chance) * (together - without) / count  # in the next step, if it is wrong
        rate = (gained + _expected(count, chance)) / (together + more)
        if rate > best_rate:
            best, best_rate = count, rate
        count //= 2
    return best


# A sequence with drafts runs several tokens in a step that have not been drawn yet.


class _DraftingDecode(HostDecode):
    """The phase in which a sequence runs the token drawn last, and a draft after it if there is one."""

    def demand(self, sequence: SamplingSequence) -> TokenDemand:
        drafting = _drafting(sequence)
        return drafting.draft_demand if drafting.drafter.draft else super().demand(sequence)

    def draws_ahead(self, sequence: SamplingSequence) -> bool:
        return super().draws_ahead(sequence) and not _drafting(sequence).drafter.draft

    def run(self, sequence: SamplingSequence, count: int, num_draws: int) -> TokenRun:
        if not _drafting(sequence).drafter.draft:
            return super().run(sequence, count, num_draws)
        return _drafting(sequence).run_draft(count) or super().run(sequence, 1, num_draws)


class _DraftingGiven(Given):
    """The phase in which a sequence runs tokens known without a draw, and a draft after them if there is one."""

    def demand(self, sequence: SamplingSequence) -> TokenDemand:
        drafting = _drafting(sequence)
        return drafting.draft_demand if drafting.may_draft else super().demand(sequence)

    def run(self, sequence: SamplingSequence, count: int, num_draws: int) -> TokenRun:
        drafting = _drafting(sequence)
        return drafting.run_draft(count) or super().run(sequence, min(count, drafting.num_certain), num_draws)


class _DraftInFlight(Draft):
    """The phase of a sequence while its run with a draft is in flight and a spare slot holds the state from before."""

    def __init__(self, before: AnyPhase) -> None:
        self.before = before

    def take(self, sequence: SamplingSequence, run: TokenRun, rows: RunRows) -> list[Event]:
        return _drafting(sequence).take_draft(run, rows)


def _drafting(sequence: SlotSequence) -> DraftingSequence:
    assert isinstance(sequence, DraftingSequence), "only such a sequence has these phases"
    return sequence


class DraftingSequence(SamplingSequence):
    """A sequence that runs drafts of its next tokens. It draws the same tokens as it would without drafts.

    Each token is drawn from the same row and random number. A run begins with its certain tokens, which were drawn and
    have not been run; the draft follows them. If a token of the draft was wrong, the tokens that were drawn become
    certain ones of the next run, which starts from the state before this one.
    """

    drafter: Drafter  # must be set before anything is run
    _decode_phase = _DraftingDecode
    _given_phase = _DraftingGiven
    _stays_on_device = False  # a draft may begin behind any token
    _row_masks: Sequence[Mask | None] = ()  # of the draft's rows, if there is a grammar

    @property
    def may_draft(self) -> bool:
        """True if a draft may be added to the sequence's next run, after the tokens that are known."""
        if self.drafter.is_off or self.answer.ending is not None:
            return False
        return isinstance(self.phase, (_DraftingDecode, _DraftingGiven))

    @property
    def num_certain(self) -> int:
        return self.end - self.submitted

    @property
    def awaits_draw(self) -> bool:
        return super().awaits_draw or isinstance(self.phase, Draft)

    def close(self) -> None:
        super().close()
        self.drafter.join()

    def propose(self, most: int) -> list[int]:
        """Return a draft of at most `most` next tokens. Call it only if the drafter's `look` returned True."""
        return self.drafter.propose(len(self.generated), most)

    def prepare(self, draft: Sequence[int]) -> None:
        """Set the next draft to what the grammar allows of it. If that takes too long, there are no more drafts."""
        if draft and self._mask is not None:
            begun = time.perf_counter()
            admitted = self._mask_threads.admit(self._mask, draft)
            if admitted is None:
                draft, self.drafter.is_off = (), True
            else:
                draft, self._row_masks = admitted
            self._counters.mask_seconds.add(time.perf_counter() - begun)
        self.drafter.draft = draft

    @property
    def draft_demand(self) -> DraftDemand:
        """The numbers of tokens and logit rows of the next run, with a draft: the known tokens and the drafted ones."""
        num_drafted = len(self.drafter.draft)
        return DraftDemand(self.num_certain + num_drafted, 1 + num_drafted)

    def run_draft(self, count: int) -> TokenRun | None:
        """Return a run of at most `count` tokens: those drawn already, and as much of the draft as fits; or None.

        The draft is used up in either case. The result is None if there is no draft, if `count` leaves no room for any
        of it, or if the device does not copy the state.
        """
        draft, self.drafter.draft = self.drafter.draft, ()
        draft = draft[: max(count - self.num_certain, 0)]
        if not draft or not self.drafter.branch(self.slot):
            return None
        self.in_flight.append(self.enter(_DraftInFlight(self.phase)))
        certain = self.generated[-self.num_certain :]
        self.submitted += len(certain) + len(draft)
        self._counters.draft_tokens += len(draft)
        self.drafter.num_drafted += len(draft)
        row_masks = self._row_masks[: 1 + len(draft)]
        masks = partial(stack_masks, row_masks) if any(mask is not None for mask in row_masks) else None
        return TokenRun(self.slot, [*certain, *draft], rows=1 + len(draft), masks=masks, lora=self.lora)

    def take_draft(self, run: TokenRun, rows: RunRows) -> list[Event]:
        """Check a draft by drawing from its rows; return the events. A wrong one goes on from the state before."""
        num_certain = len(run.tokens) - len(rows) + 1
        draft, before = run.tokens[num_certain:], self.position
        num_run, goes_on = self._draw_along(draft, rows)
        self.position += num_certain + num_run  # the tokens that count
        self.enter(self.decode)
        if num_run == len(draft):
            self.drafter.join()
            if not goes_on:
                return self._follow(rows.last)
            if self.end > self.position + 1:  # forced tokens follow
                self.enter(self._given_phase(self.end))
            return self._go_on_or_end()
        end = self._end_of_run(self.answer.ending, ())
        self.drafter.go_back(self.slot)
        self.position = self.submitted = before
        if not goes_on:
            self._close(end)
            return self.answer.events()
        self.enter(self._given_phase(end))
        return self._go_on_or_end()

    def drop_draft(self) -> bool:
        phase = self.phase
        if not isinstance(phase, _DraftInFlight):
            return False
        self.in_flight.clear()
        self.drafter.go_back(self.slot)
        self.drafter.is_off = True
        self.submitted = self.position
        self.enter(phase.before)
        return True

    def _finish(self, ending: Ending, row: RowSource) -> Finished:
        drafter = self.drafter
        return replace(
            super()._finish(ending, row), draft_tokens=drafter.num_drafted, accepted_tokens=drafter.num_accepted
        )

    def _draw_along(self, draft: Sequence[int], rows: RunRows) -> tuple[int, bool]:
        """Draw tokens from `rows` as long as they equal the draft's, and one more; accept forced ones in between.

        Return the number of tokens of `draft` before the last that was drawn, or all of them if only forced ones
        follow. Also return whether the text continues.
        """
        place = 0
        while True:
            row = partial(rows.row, place, self.allowed)
            draw = self.sampler.draw(row())
            forced: Sequence[TokenInfo] = ()
            if self._take(draw, row) and self._mask is not None:
                self._mask.advance()
                forced = self._take_forced(self._mask)
            goes_on = self.answer.ending is None
            if place == len(draft) or draw.token != draft[place]:
                return place, goes_on
            num_right = min(1 + len(forced), len(draft) - place)
            self._counters.accepted_tokens += num_right
            self.drafter.num_accepted += num_right
            if not goes_on:
                return place, False
            place += num_right
            if num_right < 1 + len(forced):
                return place, True


def awaits_draft(drafts: Drafts, live: Sequence[SlotSequence]) -> bool:
    """Return True if one of the sequences `live` is likely to run a draft once the tokens in flight are known."""
    num_answering = sum(isinstance(one.phase, HostDecode) for one in live)
    if not drafts.may_pay(num_answering):
        return False
    foretelling = _foretelling(live)
    if not foretelling:
        return False
    plan = drafts.plan(num_answering, num_answering, len(live) - num_answering)
    return not plan.is_full and any(plan.take(len(one.propose(plan.room)), one.drafter.chance) for one in foretelling)


def choose_drafts(drafts: Drafts, live: Sequence[SlotSequence]) -> None:
    """Choose drafts for those of the sequences `live` that a draft would speed up, and set them for the next step."""
    if not drafts.is_on:
        return
    num_answering = sum(isinstance(one.phase, HostDecode) or _may_draft(one) for one in live)
    if not drafts.may_pay(num_answering):
        return
    foretelling = [
        one for one in live if isinstance(one, DraftingSequence) and one.drafter.look(one.generated) and one.may_draft
    ]
    if not foretelling:
        return
    num_again = sum(one.num_certain - 1 for one in live if isinstance(one, DraftingSequence) and one.may_draft)
    plan = drafts.plan(num_answering, num_answering + num_again, len(live) - num_answering)
    for one in foretelling:
        if plan.is_full:
            return
        draft = one.propose(plan.room)
        one.prepare(draft[: plan.take(len(draft), one.drafter.chance)])


def _may_draft(one: SlotSequence) -> bool:
    return isinstance(one, DraftingSequence) and one.may_draft


def _foretelling(live: Sequence[SlotSequence]) -> list[DraftingSequence]:
    """Pass their new tokens to the drafters of `live`; return the sequences for which a draft can be proposed."""
    return [one for one in live if isinstance(one, DraftingSequence) and one.drafter.look(one.generated)]
