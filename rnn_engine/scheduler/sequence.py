"""One request on its way through the model: what it runs next, and what its client hears of the outcome.

Knows its own tokens and text; knows nothing of other sequences, of slots' owners or of the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rnn_engine.requests import (
    EndState,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    PromptScored,
    Started,
    TextDelta,
    TokenInfo,
)
from rnn_engine.sampling import LogitRow, Sampler, random_seed, top_logprobs
from rnn_engine.scheduler.batching import TokenDemand
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.scheduler.scoring import PromptScores
from rnn_engine.scheduler.text import TextStream
from rnn_engine.types import F32, State, TokenRun
from states.cache.checkpoint import CheckpointKind
from states.cache.policy import CheckpointPoint

_CANDIDATES = 128  # that are sorted at once of a whole row


class LiveSequence:
    """A prompt and what was generated after it, in `slot`, whose state holds the first `position` tokens."""

    def __init__(
        self,
        request: GenerateRequest,
        slot: int,
        start: Start,
        token_bytes: Callable[[int], bytes],
        read_state: Callable[[int], State],
    ) -> None:
        """`read_state` gives the state that a slot holds."""
        self.request = request
        self.slot = slot
        self.position = start.cached_tokens
        self.finished = False
        self._start = start
        self._token_bytes = token_bytes
        self._read_state = read_state
        self._seed = random_seed() if request.sampling.seed is None else request.sampling.seed
        self._sampler = Sampler(request.sampling, self._seed, request.penalised_prompt)
        self._text = TextStream(request.stop)
        self._generated: list[int] = []
        self._scores = None if request.score_from is None else self._begin_scores(request.score_from)

    @property
    def demand(self) -> TokenDemand:
        """What this sequence would run next."""
        if not self._in_prompt:
            return TokenDemand(1)
        cut = self._start.cuts.next()
        end = len(self.request.prompt) if cut is None else cut.position
        return TokenDemand(end - self.position, max(self._scored_rows(end), 1))

    @property
    def tokens_run(self) -> list[int]:
        """The tokens that the slot's state has taken in since the request's start."""
        return [*self.request.prompt, *self._generated][: self.position]

    @property
    def due(self) -> CheckpointPoint | None:
        """The checkpoint that is to be made of the slot's present state, if any."""
        if (cut := self._cut_at(self.position)) is not None:
            return cut
        if self.finished and self._generated:
            return CheckpointPoint(self.position, CheckpointKind.GENERATION_END, logits=True)
        return None

    def run(self, count: int) -> TokenRun:
        """The next `count` tokens, as part of a step."""
        if not self._in_prompt:
            return TokenRun(self.slot, (self._generated[-1],), rows=1)
        end = self.position + count
        tokens = self.request.prompt[self.position : end]
        if (rows := self._scored_rows(end)) > 0:
            # The prompt's last row has no target of its own; its logit at the last token is not used.
            targets = (*self.request.prompt[end - rows + 1 : end + 1], self.request.prompt[-1])
            return TokenRun(self.slot, tokens, rows=rows, targets=targets[:rows])
        # A state that is to be kept gets a row too, for its logits tell whether it is sound.
        wanted = end == len(self.request.prompt) or self._cut_at(end) is not None
        return TokenRun(self.slot, tokens, rows=int(wanted))

    def begin(self) -> list[Event]:
        """The events that come before any step: the first token, where the logits after the prompt are known."""
        if self._start.logits is None:
            return []
        return self._leave_prompt(LogitRow.of_full(self._start.logits, _CANDIDATES))

    def advance(self, run: TokenRun, rows: Sequence[LogitRow], target_logits: F32) -> list[Event]:
        """Take in the rows that `run` gave; the events that follow from them."""
        prefilled = self._in_prompt
        if self._scores is not None and run.targets is not None:
            self._scores.take(rows, target_logits)
        self.position += len(run.tokens)
        if self._in_prompt:
            return []
        if prefilled:
            return self._leave_prompt(rows[-1])
        if len(self._generated) == self.request.max_tokens:
            return [self._finish("length", rows[-1])]
        return self._generate(rows[-1])

    def kept(self) -> None:
        """What is due at this moment, if anything, has been kept."""
        self._start.cuts.passed(self.position)

    def close(self) -> None:
        """It runs no more, whatever it has reached: nobody is to wait for it."""
        self._start.cuts.close()

    @property
    def _in_prompt(self) -> bool:
        return self.position < len(self.request.prompt)

    def _cut_at(self, position: int) -> CheckpointPoint | None:
        cut = self._start.cuts.next()
        return cut if cut is not None and cut.position == position else None

    def _begin_scores(self, first: int) -> PromptScores:
        """The prompt's first token is scored here, as no row of a step does it."""
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

    def _scored_rows(self, end: int) -> int:
        """How many of the rows up to `end` are scored; the row of a token scores the one after it."""
        if self.request.score_from is None:
            return 0
        return max(end - max(self.position, self.request.score_from - 1), 0)

    def _leave_prompt(self, row: LogitRow) -> list[Event]:
        """The prompt's end, where `row` is what follows from it."""
        events: list[Event] = [Started(len(self.request.prompt), self._start.cached_tokens)]
        if self._scores is not None:
            events.append(PromptScored(self._scores.told()))
        if self.request.max_tokens == 0:
            return [*events, self._finish("length", row)]
        return [*events, *self._generate(row)]

    def _generate(self, row: LogitRow) -> list[Event]:
        drawn = self._sampler.draw(row)
        self._generated.append(drawn.token)
        if drawn.token in self.request.stop_tokens:
            told = None if self.request.logprobs is None else self._describe(drawn.token, drawn.logprob, row)
            return [*_text_event(self._text.flush(), ()), self._finish("stop", row, drawn.token, told)]
        tokens = (self._describe(drawn.token, drawn.logprob, row),)
        text = self._text.feed(tokens[0].data)
        if self._text.match is not None:
            return [*_text_event(text, tokens), self._finish("stop", row, self._text.match)]
        if len(self._generated) < self.request.max_tokens:
            return [TextDelta(text, tokens)]
        last = TextDelta(text + self._text.flush(), tokens)
        # The state at the end has taken in the last token too, so that one is yet to be run.
        return [last] if self.request.keep_end else [last, self._finish("length", row)]

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
        """The end, where `row` is what follows from the slot's state."""
        self.finished = True
        end = None
        if self.request.keep_end:
            end = EndState(tuple(self.tokens_run), self._read_state(self.slot), row.read_full().copy())
        return Finished(reason, len(self._generated), self._seed, stop, end, stop_token)


def _text_event(text: str, tokens: tuple[TokenInfo, ...]) -> list[Event]:
    return [TextDelta(text, tokens)] if text or tokens else []
