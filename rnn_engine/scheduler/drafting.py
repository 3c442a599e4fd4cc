"""A sequence whose text is drafted: it runs several tokens in a step that its model has not drawn yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rnn_engine.requests import Event, Finished, TokenInfo
from rnn_engine.sampling import Mask, RowSource, RunRows, stack_masks
from rnn_engine.scheduler.answer import Ending
from rnn_engine.scheduler.batching import TokenDemand
from rnn_engine.scheduler.drafts import Drafter, Drafts
from rnn_engine.scheduler.given import GivenTokens
from rnn_engine.scheduler.member import DraftDemand, Member
from rnn_engine.scheduler.sequence import LiveSequence
from rnn_engine.types import TokenRun

logger = logging.getLogger(__name__)


class DraftingSequence(LiveSequence):
    """Draws each token from the row and with the random number that it would be drawn with one token at a time.

    What it has drawn and not run, its certain tokens, come first in a run, and its draft behind them. Where a token was
    drafted wrongly, those that were drawn are certain ones of the next run, from the state before this one.
    """

    drafter: Drafter  # to be set before anything is run
    _row_masks: Sequence[Mask | None] = ()  # of the draft's rows, where there is a grammar

    @property
    def may_draft(self) -> bool:
        if self.drafter.is_off or self._awaits_draw:
            return False
        return (self.decodes or self._given is not None) and self._answer.ending is None

    @property
    def num_certain(self) -> int:
        """How many tokens that were drawn are still to be run."""
        return self._prompt_length + len(self._generated) - self._submitted

    @property
    def demand(self) -> TokenDemand:
        if (self.decodes and not self.drafter.draft) or not self.may_draft:
            return super().demand
        num_drafted = len(self.drafter.draft)
        return DraftDemand(self.num_certain + num_drafted, 1 + num_drafted)

    @property
    def draws_ahead(self) -> bool:
        return super().draws_ahead and not self.drafter.draft

    def run(self, count: int, num_draws: int = 0) -> TokenRun:
        draft, self.drafter.draft = self.drafter.draft, ()
        if self.decodes and not draft:
            return super().run(count, num_draws)
        num_certain = self.num_certain
        draft = draft[: max(count - num_certain, 0)]
        if not draft or not self._branch():
            return super().run(min(count, num_certain) if self.may_draft else count, num_draws)
        self.runs_in_flight += 1
        self._submitted += num_certain + len(draft)
        self._counters.draft_tokens += len(draft)
        self.drafter.num_drafted += len(draft)
        row_masks = self._row_masks[: 1 + len(draft)]
        masks = partial(stack_masks, row_masks) if any(mask is not None for mask in row_masks) else None
        return TokenRun(self.slot, [*self._generated[-num_certain:], *draft], rows=1 + len(draft), masks=masks)

    def advance(self, run: TokenRun, rows: RunRows) -> list[Event]:
        if self.drafter.spare is None:
            return super().advance(run, rows)
        num_certain = len(run.tokens) - len(rows) + 1
        draft, before = run.tokens[num_certain:], self.position
        num_run, goes_on = self._draw_along(draft, rows)
        self._given, self.decodes = None, True
        self.position += num_certain + num_run  # those that count
        if num_run == len(draft):
            self.drafter.join()
            if goes_on and (end := self._end_of_run(None, ())) > self.position + 1:  # with what is forced
                self._given, self.decodes = GivenTokens(end), False
            return self._go_on_or_end() if goes_on else self._follow(rows.last)
        self.drafter.go_back(self.slot)
        events = self._go_on_or_end() if goes_on else self._answer.events()
        ending = None if goes_on else self._answer.ending
        self._given, self.decodes = GivenTokens(self._end_of_run(ending, ())), False
        self.position = self._submitted = before
        return events

    def drop_draft(self) -> bool:
        if self.drafter.spare is None:
            return False
        self.drafter.go_back(self.slot)
        self.drafter.is_off = True
        self._submitted = self.position
        return True

    @property
    def _awaits_draw(self) -> bool:
        return self._num_drawing > 0 or self.drafter.spare is not None

    def close(self) -> None:
        super().close()
        self.drafter.join()

    @property
    def foretells(self) -> bool:
        """Whether there is anything to draft that may follow the tokens that there are."""
        return self.drafter.look(self._generated)

    def propose(self, most: int) -> list[int]:
        """Return a draft of at most so many tokens, where the sequence `foretells` any."""
        return self.drafter.propose(len(self._generated), most)

    def prepare(self, draft: Sequence[int]) -> None:
        """Have the next run go on with as much of `draft` as may come next."""
        if draft and self._mask is not None:
            begun = time.perf_counter()
            admitted = self._mask_threads.admit(self._mask, draft)
            if admitted is None:
                draft, self.drafter.is_off = (), True
            else:
                draft, self._row_masks = admitted
            self._counters.mask_seconds.add(time.perf_counter() - begun)
        self.drafter.draft = draft

    def _finish(self, ending: Ending, row: RowSource) -> Finished:
        drafter = self.drafter
        return replace(
            super()._finish(ending, row), draft_tokens=drafter.num_drafted, accepted_tokens=drafter.num_accepted
        )

    def _branch(self) -> bool:
        """Copy the state before a draft is run; return False where the device refuses."""
        try:
            self.drafter.branch(self.slot)
        except Exception:
            logger.exception("a state was not copied; its sequence goes on without a draft")
            return False
        return True

    def _draw_along(self, draft: Sequence[int], rows: RunRows) -> tuple[int, bool]:
        """Take the tokens that are drawn while `draft` has them, and one more; and those that are forced behind each.

        Return how many of `draft` lie before the last that was drawn, or all where only forced ones follow them, and
        whether the text goes on.
        """
        place = 0
        while True:
            row = partial(rows.row, place, self.allowed)
            draw = self.sampler.draw(row())
            forced: Sequence[TokenInfo] = ()
            if self._take(draw, row) and self._mask is not None:
                self._mask.advance()
                forced = self._take_given(self._mask)
            goes_on = self._answer.ending is None
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


def awaits_draft(drafts: Drafts, live: Sequence[Member]) -> bool:
    """Whether a sequence of the next step is likely to draft as soon as the tokens in flight are known."""
    num_answering = sum(one.decodes for one in live)
    if not drafts.may_pay(num_answering):
        return False
    foretelling = [one for one in live if isinstance(one, DraftingSequence) and one.foretells]
    if not foretelling:
        return False
    plan = drafts.plan(num_answering, num_answering, len(live) - num_answering)
    return any(plan.take(len(one.propose(plan.room)), one.drafter.chance) for one in foretelling)


def choose_drafts(drafts: Drafts, live: Sequence[Member]) -> None:
    """Say what the sequences of a step draft, where it pays."""
    if not drafts.is_on:
        return
    num_answering = sum(one.decodes or one.may_draft for one in live)
    if not drafts.may_pay(num_answering):
        return
    foretelling = [one for one in live if isinstance(one, DraftingSequence) and one.foretells and one.may_draft]
    if not foretelling:
        return
    num_again = sum(one.num_certain - 1 for one in live if isinstance(one, DraftingSequence) and one.may_draft)
    plan = drafts.plan(num_answering, num_answering + num_again, len(live) - num_answering)
    for one in foretelling:
        if plan.is_full:
            return
        draft = one.propose(plan.room)
        one.prepare(draft[: plan.take(len(draft), one.drafter.chance)])
