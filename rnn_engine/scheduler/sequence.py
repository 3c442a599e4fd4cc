"""One request on its way through the model: what it runs next, and the events that follow from what was run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context

import numpy as np
from numpy.typing import NDArray

from rnn_engine.requests import (
    EndState,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    PromptScored,
    Started,
    StateMix,
    TextDelta,
    TokenInfo,
)
from rnn_engine.sampling import LogitRow, SequenceMask, SequenceSampler, mix_logits, random_seed, top_logprobs
from rnn_engine.scheduler.member import TAKE_IN, Member
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
        context: Context,
    ) -> None:
        """`read_state` gives the state that a slot holds. `note_prompt_end` is called when the prompt has been run,
        `note_whole_row` when a draw has read a whole row.

        `context` is that of whoever asked.
        """
        super().__init__(key, request, slot, start, context)
        self._followers: list[Follower] = []
        self._stop_tokens = frozenset(request.stop_tokens)
        self._token_bytes = token_bytes
        self._read_state = read_state
        self._note_prompt_end = note_prompt_end
        self._seed = random_seed() if request.sampling.seed is None else request.sampling.seed
        self._sampler = SequenceSampler(
            request.sampling, self._seed, request.sampling_context(vocab_size, token_bytes), note_whole_row
        )
        self._mask = None
        if request.token_mask is not None:
            self._mask = SequenceMask(request.token_mask(), vocab_size, self._stop_tokens - {0})
        self._text = TextStream(request.stop)
        self._max_tokens = request.max_tokens
        self._last_reason: FinishReason = "length"  # where the text ends with its last token
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
            return self._draw_mixed(self.request.mix)
        if self.start.logits is None:
            return []
        return self._go_on(self._whole_row(self.start.logits))

    def advance(self, run: TokenRun, rows: Sequence[LogitRow], target_logits: F32) -> list[Event]:
        if self._scores is not None and run.targets is not None:
            self._scores.take(rows, target_logits)
        self.position += len(run.tokens)
        if self.position < self._prompt_length:
            return []
        return self._go_on(rows[-1]) if self.request.mix is None else self.take_row(self, rows[-1])

    def take_row(self, member: Member, row: LogitRow) -> list[Event]:
        """Take in the next token's row of a member of a mix; return the events that follow once all have theirs."""
        assert self.request.mix is not None
        member.row = row.read_full().copy()
        return self._draw_mixed(self.request.mix)

    def cut(self) -> bool:
        """End the text after the tokens that there are, in the next step; return False where there is none yet."""
        if self._generated:
            self._max_tokens = len(self._generated)
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

    def _row_masks(self, num_rows: int) -> NDArray[np.uint32] | None:
        if self._mask is None or self.request.mix is not None:  # the mask is for the mixed row
            return None
        return self._mask.for_last(num_rows)

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
        return LogitRow.of_full(logits, _CANDIDATES, None if self._mask is None else self._mask.current)

    def _go_on(self, row: LogitRow) -> list[Event]:
        """Return the events that follow from the row after all tokens that there are."""
        if not self._generated:
            return self._leave_prompt(row)
        if len(self._generated) == self._max_tokens:
            return [*_text_event(self._text.flush(), ()), self._finish(self._last_reason, row)]
        return self._generate(row)

    def _leave_prompt(self, row: LogitRow) -> list[Event]:
        """Return the events at the prompt's end, where `row` is what follows from it."""
        events: list[Event] = [Started(self._prompt_length, self.start.cached_tokens, self._note_prompt_end())]
        if self._scores is not None:
            events.append(PromptScored(self._scores.infos))
        if self.request.max_tokens == 0:
            return [*events, self._finish("length", row)]
        return [*events, *self._generate(row)]

    def _generate(self, row: LogitRow) -> list[Event]:
        drawn = self._sampler.draw(row)
        self._generated.append(drawn.token)
        if self._mask is not None:
            self._mask.accept(drawn.token)
        if drawn.token in self._stop_tokens:
            info = None if self.request.logprobs is None else self._describe(drawn.token, drawn.logprob, row)
            return [*_text_event(self._text.flush(), ()), self._finish("stop", row, drawn.token, info)]
        tokens = (self._describe(drawn.token, drawn.logprob, row),)
        text = self._text.feed(tokens[0].data, may_stop=len(self._generated) > self.request.min_tokens)
        if self._text.match is not None:
            return [*_text_event(text, tokens), self._finish("stop", row, self._text.match)]
        ended = self._mask is not None and self._mask.ended
        if not ended and len(self._generated) < self._max_tokens:
            if self._mask is not None:
                self._mask.advance()
            return [TextDelta(text, tokens)]
        self._last_reason = "stop" if ended else "length"
        self._max_tokens = len(self._generated)
        last = TextDelta(text + self._text.flush(), tokens)
        # The state at the end has taken in the last token too, so that one is yet to be run.
        if not self.request.keep_end:
            return [last, self._finish(self._last_reason, row)]
        self._decode_demand = TAKE_IN
        return [last]

    def _describe(self, token: int, logprob: float, row: LogitRow) -> TokenInfo:
        if self.request.logprobs is None:
            return TokenInfo(token, self._token_bytes(token), None)
        return TokenInfo(token, self._token_bytes(token), logprob, top_logprobs(row, self.request.logprobs))

    def _finish(
        self,
        reason: FinishReason,
        row: LogitRow,
        stop: bytes | int | None = None,
        stop_token: TokenInfo | None = None,
    ) -> Finished:
        """End the sequence, where `row` is what follows from the slot's state."""
        for member in self.members:
            member.finished = True
        end = None
        if self.request.keep_end:
            logits = row.read_full().copy() if self.row is None else self.row
            end = EndState(tuple(self.tokens_run), self._read_state(self.slot), logits)
        return Finished(reason, len(self._generated), self._seed, stop, end, stop_token)


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
