"""One request on its way through the model: what it runs next, and the events that follow from what was run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rnn_engine.requests import (
    EndState,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    PromptProgress,
    PromptScored,
    Started,
    StateMix,
    TextDelta,
    TokenInfo,
)
from rnn_engine.sampling import (
    AllowedTokens,
    LogitRow,
    SequenceMask,
    SequenceSampler,
    mix_logits,
    random_seed,
    top_logprobs,
)
from rnn_engine.scheduler.batching import TokenDemand
from rnn_engine.scheduler.given import GivenTokens
from rnn_engine.scheduler.member import DECODE, TAKE_IN, Member
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.scheduler.text import TextStream
from rnn_engine.telemetry import Timing
from rnn_engine.types import F32, State, TokenRun

_CANDIDATES = 128  # that are sorted at once of a whole row


class LiveSequence(Member):
    """A prompt and what was generated after it; draws the tokens. Of a mix, what is run from the first state."""

    def __init__(
        self,
        key: int,
        request: GenerateRequest,
        slot: int,
        start: Start,
        vocab_size: int,
        token_bytes: Callable[[int], bytes],
        read_state: Callable[[int], State],
        note_prompt_end: Callable[[], Timing],
        note_whole_row: Callable[[], None],
        note_mask: Callable[[float], None],
        context: Context,
    ) -> None:
        """`read_state` gives the state that a slot holds. `note_prompt_end` is called when the prompt has been run,
        `note_whole_row` when a draw has read a whole row, `note_mask` with the seconds that making a mask took.

        `context` is that of whoever asked.
        """
        super().__init__(key, request, slot, start, context)
        self._followers: list[Follower] = []
        self._stop_tokens = frozenset(request.stop_tokens)
        self._token_bytes = token_bytes
        self._read_state = read_state
        self._note_prompt_end = note_prompt_end
        self._note_mask = note_mask
        self._seed = random_seed() if request.sampling.seed is None else request.sampling.seed
        self._sampler = SequenceSampler(
            request.sampling, self._seed, request.sampling_context(vocab_size, token_bytes), note_whole_row
        )
        self._mask = _make_mask(request, vocab_size)
        self._text = TextStream(request.stop)
        self._given: GivenTokens | None = None  # what is to be run before the next token is drawn, but for the last one
        self._ending: _Ending | None = None
        self._scores = None if request.score_from is None else self._begin_scores(request.score_from)

    @property
    def members(self) -> tuple[Member, ...]:
        return (self, *self._followers)

    def join(self, request: GenerateRequest, slot: int, start: Start) -> None:
        """Add what runs from the next state of the mix, before anything is run."""
        self._followers.append(Follower(self, request, slot, start))

    def begin(self) -> list[Event]:
        """Return the events that are ready before the first step: a token, where the prompt's logits are known."""
        if self.request.mix is not None:
            for member in self.members:
                member.row = member.start.logits
            return [*self._progress(), *self._draw_mixed(self.request.mix)]
        if self.start.logits is None:
            return self._progress()
        return [*self._progress(), *self._go_on(self._whole_row(self.start.logits))]

    @property
    def demand(self) -> TokenDemand:
        if self._given is None:
            return super().demand
        left = self._given.end - self._submitted
        if left == 1 and self._ending is not None:
            return TAKE_IN
        return TokenDemand(left, 1 if self._given.is_scored else left)

    def run(self, count: int) -> TokenRun:
        if self._given is None:
            return super().run(count)
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

    def advance(self, run: TokenRun, rows: Sequence[LogitRow], target_logits: F32) -> list[Event]:
        in_prompt = self.position < self._prompt_length
        if in_prompt and self._scores is not None and run.targets is not None:
            self._scores.take(rows, target_logits)
        self.position += len(run.tokens)
        progress = self._progress() if in_prompt else []
        if self.position < self._prompt_length:
            return progress
        if self._given is not None:
            if run.targets is not None:
                self._given.score(rows, target_logits)
            if self.position < self._given.end:
                return []
        events = self._go_on(rows[-1]) if self.request.mix is None else self.take_row(self, rows[-1])
        return [*progress, *events] if progress else events

    def _progress(self) -> list[Event]:
        """Return the event that tells how far the prompt has come, where it is asked for."""
        if not self.request.report_progress:
            return []
        return [PromptProgress(self._prompt_length, self.start.cached_tokens, self.position)]

    def take_row(self, member: Member, row: LogitRow) -> list[Event]:
        """Take in the next token's row of a member of a mix; return the events that follow once all have theirs."""
        assert self.request.mix is not None
        member.row = row.read_full().copy()
        return self._draw_mixed(self.request.mix)

    def cut(self) -> bool:
        """End the text after the tokens that there are, in the next step; return False where there is none yet."""
        if self._generated and self._ending is None:
            self._ending = _Ending("length")
            self._decode_demand = TAKE_IN
        return len(self._generated) > 0

    def _begin_scores(self, first: int) -> PromptScores:
        """Return scores with the prompt's first token taken, where it is scored, for no row of a step scores it."""
        tokens = self.request.prompt[first:]
        scores = PromptScores(tokens, self.request.logprobs or 0, self._token_bytes)
        if first > 0 or len(tokens) == 0:
            return scores
        logits = None if self.request.initial_state is None else self.request.initial_state.logits
        if logits is None:
            scores.take_unknown()
        else:
            scores.take([LogitRow.of_full(logits, _CANDIDATES)], logits[tokens[0] : tokens[0] + 1])
        return scores

    @property
    def allowed(self) -> AllowedTokens | None:
        return None if self._mask is None else self._mask.current

    def _make_masks(self, num_rows: int) -> Callable[[], NDArray[np.uint32] | None] | None:
        if self._mask is None or self._mask.forced or self._ending is not None:  # no token is drawn from the row
            return None
        if self.request.mix is not None:  # the mask is for the mixed row
            return None
        return partial(self._masks_for_last, self._mask, num_rows)

    def _masks_for_last(self, mask: SequenceMask, num_rows: int) -> NDArray[np.uint32] | None:
        begun = time.perf_counter()
        masks = mask.for_last(num_rows)
        self._note_mask(time.perf_counter() - begun)
        return masks

    def _draw_mixed(self, mix: StateMix) -> list[Event]:
        rows = [member.row for member in self.members if member.row is not None]
        if len(rows) < len(self.members):
            return []
        events = self._go_on(self._whole_row(mix_logits(rows, mix.weights, mix.kind)))
        if not self.finished:
            for member in self.members:
                member.row = None
        return events

    def _whole_row(self, logits: F32) -> LogitRow:
        return LogitRow.of_full(logits, _CANDIDATES, None if self.allowed is None else self.allowed.mask)

    def _go_on(self, row: LogitRow) -> list[Event]:
        """Return the events that follow from the row after all tokens that there are."""
        events: list[Event] = []
        if self._given is not None:
            events, self._given = self._given.events, None
        elif not self._generated:
            return self._leave_prompt(row)
        if self._ending is not None:
            return [*events, *_text_event(self._text.flush(), ()), self._finish(self._ending, row)]
        return [*events, *self._generate(row)]

    def _leave_prompt(self, row: LogitRow) -> list[Event]:
        """Return the events at the prompt's end, where `row` is what follows from it."""
        events: list[Event] = [Started(self._prompt_length, self.start.cached_tokens, self._note_prompt_end())]
        if self._scores is not None:
            events.append(PromptScored(self._scores.infos))
        if self.request.max_tokens == 0:
            return [*events, self._finish(_Ending("length"), row)]
        return [*events, *self._generate(row)]

    def _generate(self, row: LogitRow) -> list[Event]:
        """Draw a token, and take those that are given after it."""
        delta = _Delta()
        if self._mask is None or not self._mask.forced:
            drawn = self._sampler.draw(row)
            goes_on = self._take(self._describe(drawn.token, drawn.logprob, row), delta)
            if self._mask is None or not goes_on:
                return self._follow(row, delta)
            self._mask.advance()
        return self._follow(row, delta, self._take_given(self._mask, delta))

    def _take_given(self, mask: SequenceMask, delta: _Delta) -> list[TokenInfo]:
        """Take the tokens that come next whatever the model says; return them."""
        infos: list[TokenInfo] = []
        while mask.forced:
            for token in mask.forced:
                infos.append(TokenInfo(token, self._token_bytes(token), None))
                self._sampler.given(token)
                if not self._take(infos[-1], delta):
                    return infos
            mask.advance()
        return infos

    def _take(self, info: TokenInfo, delta: _Delta) -> bool:
        """Append a token to the answer, and its text to `delta`; return False where the text ends there."""
        self._generated.append(info.token)
        if self._mask is not None:
            self._mask.accept(info.token)
        if info.token in self._stop_tokens:
            self._ending = _Ending("stop", info.token, None if self.request.logprobs is None else info)
            delta.text += self._text.flush()
            return False
        delta.tokens.append(info)
        delta.text += self._text.feed(info.data, may_stop=len(self._generated) > self.request.min_tokens)
        if self._text.match is not None:
            self._ending = _Ending("stop", self._text.match)
        elif self._mask is not None and self._mask.ended:
            self._ending = _Ending("stop")
        elif len(self._generated) >= self.request.max_tokens:
            self._ending = _Ending("length")
        if self._ending is None:
            return True
        delta.text += self._text.flush()
        return False

    def _follow(self, row: LogitRow, delta: _Delta, given: Sequence[TokenInfo] = ()) -> list[Event]:
        """Return the events of the tokens that were taken, and of the end where that is reached."""
        events = _text_event(delta.text, tuple(delta.tokens))
        unscored: Sequence[TokenInfo] = () if self.request.logprobs is None else given
        if unscored and len(given) == len(self._generated):  # the first of all, which the prompt's last row scores
            first, *unscored = unscored
            first.logprob = row.read_full().item(first.token) - row.logsumexp
            first.top = top_logprobs(row, self.request.logprobs or 0)
        end = self._end_of_run(unscored)
        if self._ending is not None and end <= self.position:
            return [*events, self._finish(self._ending, row)]
        if self.request.mix is not None:
            self._decode_demand = DECODE if self._ending is None else TAKE_IN
        elif given or self._ending is not None:
            self._given = GivenTokens(end, unscored, self.request.logprobs or 0, events if unscored else ())
        return [] if unscored else events

    def _end_of_run(self, unscored: Sequence[TokenInfo]) -> int:
        """Return up to which position tokens are run before the next one is drawn, or before the end."""
        end = self._prompt_length + len(self._generated)
        if self._ending is None:
            return end
        if self.request.keep_end:  # the state at the end has taken in all but what ended the text
            return end if self._ending.stop is None else end - 1
        return end - 1 if unscored else self.position

    def _describe(self, token: int, logprob: float, row: LogitRow) -> TokenInfo:
        if self.request.logprobs is None:
            return TokenInfo(token, self._token_bytes(token), None)
        return TokenInfo(token, self._token_bytes(token), logprob, top_logprobs(row, self.request.logprobs))

    def _finish(self, ending: _Ending, row: LogitRow) -> Finished:
        """End the sequence, where `row` is what follows from the slot's state."""
        for member in self.members:
            member.finished = True
        end = None
        if self.request.keep_end:
            logits = row.read_full().copy() if self.row is None else self.row
            end = EndState(tuple(self.tokens_run), self._read_state(self.slot), logits)
        return Finished(ending.reason, len(self._generated), self._seed, ending.stop, end, ending.stop_token)


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the text ends, once all that it needs has been run."""

    reason: FinishReason
    stop: bytes | int | None = None
    stop_token: TokenInfo | None = None


@dataclass(slots=True)
class _Delta:
    """The text and the tokens of the next `TextDelta`."""

    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list)


def _make_mask(request: GenerateRequest, vocab_size: int) -> SequenceMask | None:
    if request.token_mask is None:
        return None
    ends = frozenset(request.stop_tokens) - {0}
    return SequenceMask(request.token_mask(), vocab_size, ends, may_force=request.mix is None)


class Follower(Member):
    """What runs the tokens of a sequence from a further state of its mix."""

    def __init__(self, first: LiveSequence, request: GenerateRequest, slot: int, start: Start) -> None:
        super().__init__(first.key, request, slot, start, first.context)
        self._first = first
        self._generated = first._generated
        self._decode_demand = TAKE_IN

    @property
    def members(self) -> tuple[Member, ...]:
        return self._first.members

    def advance(self, run: TokenRun, rows: Sequence[LogitRow], target_logits: F32) -> list[Event]:  # noqa: ARG002
        self.position += len(run.tokens)
        return [] if self.position < self._prompt_length else self._first.take_row(self, rows[-1])


class PromptScores:
    """Scores a prompt's `tokens`, in their order, by the rows that come before them."""

    def __init__(self, tokens: Sequence[int], alternatives: int, token_bytes: Callable[[int], bytes]) -> None:
        self._unscored = iter(tokens)
        self._alternatives = alternatives
        self._token_bytes = token_bytes
        self._infos: list[TokenInfo] = []

    @property
    def infos(self) -> tuple[TokenInfo, ...]:
        """An entry for each token that was scored."""
        return tuple(self._infos)

    def take(self, rows: Sequence[LogitRow], target_logits: F32) -> None:
        """Score the next tokens by `rows`, whose logits at these tokens are given; leave out a row after the last."""
        for row, logit, token in zip(rows, target_logits, self._unscored, strict=False):
            logprob = float(logit) - row.logsumexp
            self._infos.append(
                TokenInfo(token, self._token_bytes(token), logprob, top_logprobs(row, self._alternatives))
            )

    def take_unknown(self) -> None:
        """Leave the next token without a score, as no row is known before it."""
        token = next(self._unscored)
        self._infos.append(TokenInfo(token, self._token_bytes(token), None))


def _text_event(text: str, tokens: tuple[TokenInfo, ...]) -> list[Event]:
    return [TextDelta(text, tokens)] if text or tokens else []
