"""One request on its way through the model: what it runs next, and the events that follow from what was run."""

from __future__ import annotations

from array import array
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
    TextDelta,
    TokenInfo,
)
from rnn_engine.sampling import LogitRow, SequenceMask, SequenceSampler, random_seed, top_logprobs
from rnn_engine.scheduler.batching import TokenDemand
from rnn_engine.scheduler.checkpoints import CheckpointPoint
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.scheduler.text import TextStream
from rnn_engine.telemetry import Timing
from rnn_engine.types import F32, State, TokenRun
from states.cache.checkpoint import CheckpointKind

_CANDIDATES = 128  # that are sorted at once of a whole row
DECODE = TokenDemand(1)  # a token that was drawn, from which the next one follows
LAST_RUN = TokenDemand(1)  # the last token that was drawn, for the state after it


class LiveSequence:
    """A prompt and what was generated after it, in `slot`.

    The scheduler calls `run` for each step and, when the step is done, `advance` and then `passed`. Up to two runs may
    be in flight while they lie in the prompt.
    """

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
        context: Context,
    ) -> None:
        """`read_state` gives the state that a slot holds. `note_prompt_end` is called when the prompt has been run.

        `context` is that of whoever asked.
        """
        self.key = key
        self.request = request
        self.slot = slot
        self.context = context
        self.position = start.cached_tokens  # tokens that have been run
        self.runs_in_flight = 0
        self.finished = False
        self.released = False  # it holds its slot only for the runs in flight, whose outcome nobody wants
        self._submitted = start.cached_tokens  # tokens that have been run or are in flight
        self._prompt_length = len(request.prompt)
        self._start = start
        self._plan = start.plan
        self._stop_tokens = frozenset(request.stop_tokens)
        self._token_bytes = token_bytes
        self._read_state = read_state
        self._note_prompt_end = note_prompt_end
        self._seed = random_seed() if request.sampling.seed is None else request.sampling.seed
        self._sampler = SequenceSampler(request.sampling, self._seed, request.penalised_prompt)
        self._mask = None if request.token_mask is None else SequenceMask(request.token_mask(), vocab_size)
        self._text = TextStream(request.stop)
        self._generated = array("I")  # 4 bytes a token: a text may be as long as its client likes
        self._max_tokens = request.max_tokens
        self._decode_demand = DECODE
        self._scores = None if request.score_from is None else self._begin_scores(request.score_from)

    @property
    def demand(self) -> TokenDemand:
        """What this sequence would run next."""
        if self._submitted >= self._prompt_length:
            return self._decode_demand
        point = self._plan.next()
        end = self._prompt_length if point is None else point.position
        return TokenDemand(end - self._submitted, max(self._scored_rows(end), 1))

    @property
    def awaits_token(self) -> bool:
        """Whether the runs in flight give a token, from which its next run follows."""
        return self.runs_in_flight > 0 and self._submitted >= self._prompt_length

    @property
    def can_run(self) -> bool:
        """Whether its next run can be submitted before the outcome of those in flight is known.

        Not past a checkpoint point, where the slot's state must be kept before it changes.
        """
        return self.runs_in_flight == 0 or not (self.awaits_token or self._plan.at(self._submitted))

    @property
    def tokens_run(self) -> list[int]:
        """The tokens that the slot's state has taken in since the request's start."""
        return [*self.request.prompt, *self._generated][: self.position]

    @property
    def due(self) -> CheckpointPoint | None:
        """The checkpoint that is to be made of the slot's present state, if any."""
        if (point := self._plan.at(self.position)) is not None:
            return point
        if self.finished and self._generated:
            return CheckpointPoint(self.position, CheckpointKind.GENERATION_END, logits=True)
        return None

    def run(self, count: int) -> TokenRun:
        """Return the next `count` tokens as part of a step that is submitted now."""
        self.runs_in_flight += 1
        start = self._submitted
        end = self._submitted = start + count
        if start >= self._prompt_length:
            return TokenRun(self.slot, (self._generated[-1],), rows=1, masks=self._row_masks(1))
        self._plan.submit(end)
        tokens = self.request.prompt[start:end]
        if (rows := self._scored_rows(end, start)) > 0:
            # The prompt's last row has no target of its own; its logit at the last token is not used.
            targets = (*self.request.prompt[end - rows + 1 : end + 1], self.request.prompt[-1])
            masks = self._row_masks(rows) if end == self._prompt_length else None
            return TokenRun(self.slot, tokens, rows=rows, targets=targets[:rows], masks=masks)
        # A state that is to be kept gets a row too, for its logits tell whether it is sound.
        if end == self._prompt_length:
            return TokenRun(self.slot, tokens, rows=1, masks=self._row_masks(1))
        return TokenRun(self.slot, tokens, rows=int(self._plan.at(end) is not None))

    def begin(self) -> list[Event]:
        """Return the events that are ready before the first step: a token, where the prompt's logits are known."""
        if self._start.logits is None:
            return []
        mask = None if self._mask is None else self._mask.current
        return self._leave_prompt(LogitRow.of_full(self._start.logits, _CANDIDATES, mask))

    def advance(self, run: TokenRun, rows: Sequence[LogitRow], target_logits: F32) -> list[Event]:
        """Take in the rows that `run`, the oldest in flight, gave; return the events that follow from them."""
        in_prompt = self.position < self._prompt_length
        if self._scores is not None and run.targets is not None:
            self._scores.take(rows, target_logits)
        self.position += len(run.tokens)
        if self.position < self._prompt_length:
            return []
        if in_prompt:
            return self._leave_prompt(rows[-1])
        if len(self._generated) == self._max_tokens:
            return [*_text_event(self._text.flush(), ()), self._finish("length", rows[-1])]
        return self._generate(rows[-1])

    def cut(self) -> bool:
        """End the text after the tokens that there are, in the next step; return False where there is none yet."""
        if self._generated:
            self._max_tokens = len(self._generated)
            self._decode_demand = LAST_RUN
        return len(self._generated) > 0

    def passed(self) -> None:
        """Note that the checkpoint that was due at this moment, if any, has been kept."""
        if self._plan.position < self._prompt_length:
            self._plan.advance(self.position)

    def close(self) -> None:
        """Let nobody wait for it any longer: it runs no more, whatever it has reached."""
        self._plan.close()

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
        """Return the masks of a run whose last row the next token is drawn from."""
        return None if self._mask is None else self._mask.for_last(num_rows)

    def _scored_rows(self, end: int, start: int | None = None) -> int:
        """Return how many of the rows from `start` to `end` are scored; a token's row scores the one after it."""
        if self.request.score_from is None:
            return 0
        start = self._submitted if start is None else start
        return max(end - max(start, self.request.score_from - 1), 0)

    def _leave_prompt(self, row: LogitRow) -> list[Event]:
        """Return the events at the prompt's end, where `row` is what follows from it."""
        events: list[Event] = [Started(self._prompt_length, self._start.cached_tokens, self._note_prompt_end())]
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
        text = self._text.feed(tokens[0].data)
        if self._text.match is not None:
            return [*_text_event(text, tokens), self._finish("stop", row, self._text.match)]
        if len(self._generated) < self._max_tokens:
            if self._mask is not None:
                self._mask.advance()
            return [TextDelta(text, tokens)]
        last = TextDelta(text + self._text.flush(), tokens)
        # The state at the end has taken in the last token too, so that one is yet to be run.
        if not self.request.keep_end:
            return [last, self._finish("length", row)]
        self._decode_demand = LAST_RUN
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
        self.finished = True
        end = None
        if self.request.keep_end:
            end = EndState(tuple(self.tokens_run), self._read_state(self.slot), row.read_full().copy())
        return Finished(reason, len(self._generated), self._seed, stop, end, stop_token)


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
