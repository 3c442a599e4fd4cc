"""One request on its way through the model: what it runs next, and what its client hears of the outcome.

Knows its own tokens and text; knows nothing of other sequences, of slots' owners or of the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rnn_engine.requests import (
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
from rnn_engine.scheduler.batching import Demand
from rnn_engine.scheduler.prefixes import Start
from rnn_engine.scheduler.text import TextStream
from rnn_engine.types import F32, TokenRun
from states.checkpoint import CheckpointKind


class LiveSequence:
    """A prompt and what was generated after it, in `slot`, whose state holds the first `position` tokens."""

    def __init__(self, request: GenerateRequest, slot: int, start: Start, token_bytes: Callable[[int], bytes]) -> None:
        self.slot = slot
        self.position = start.cached_tokens
        self.finished = False
        self._request = request
        self._start = start
        self._cuts = {cut.position: cut for cut in start.cuts}
        self._token_bytes = token_bytes
        self._seed = random_seed() if request.sampling.seed is None else request.sampling.seed
        self._sampler = Sampler(request.sampling, self._seed, request.penalised_prompt)
        self._text = TextStream(request.stop)
        self._prompt_scores: list[TokenInfo] = []
        self._generated: list[int] = []

    @property
    def demand(self) -> Demand:
        """What this sequence would run next."""
        if self._in_prompt:
            return Demand(self._next_cut - self.position, self._request.score_from is not None)
        return Demand(1)

    @property
    def tokens_run(self) -> list[int]:
        """The tokens that the slot's state has taken in."""
        return [*self._request.prompt, *self._generated][: self.position]

    @property
    def due(self) -> CheckpointKind | None:
        """As what the state of this moment is worth keeping; None where it isn't."""
        if self.position in self._cuts:
            return self._cuts[self.position].kind
        return CheckpointKind.GENERATION_END if self.finished else None

    def run(self, count: int) -> TokenRun:
        """The next `count` tokens, as part of a step."""
        if not self._in_prompt:
            return TokenRun(self.slot, (self._generated[-1],), rows=1)
        end = self.position + count
        tokens = self._request.prompt[self.position : end]
        if self._request.score_from is not None:
            # The prompt's last row has no target of its own; its logit at the last token is not used.
            targets = [*self._request.prompt[self.position + 1 : end + 1], self._request.prompt[-1]]
            return TokenRun(self.slot, tokens, rows=count, targets=targets[:count])
        return TokenRun(self.slot, tokens, rows=int(end == len(self._request.prompt)))

    def advance(self, run: TokenRun, rows: Sequence[LogitRow], target_logits: F32) -> list[Event]:
        """Take in the rows that `run` gave; the events that follow from them."""
        prefilled = self._in_prompt
        if run.targets is not None:
            self._score(run.targets, rows, target_logits)
        self.position += len(run.tokens)
        if self._in_prompt:
            return []
        return self.begin(rows[-1]) if prefilled else self._generate(rows[-1])

    def begin(self, row: LogitRow) -> list[Event]:
        """Draw the first token from the logits after the prompt; the events that follow."""
        if self._request.max_tokens == 0:
            return [*self._tell_start(), self._finish("length")]
        return [*self._tell_start(), *self._generate(row)]

    @property
    def _in_prompt(self) -> bool:
        return self.position < len(self._request.prompt)

    @property
    def _next_cut(self) -> int:
        """Where the next run must end at the latest."""
        return min((cut for cut in self._cuts if cut > self.position), default=len(self._request.prompt))

    def _tell_start(self) -> list[Event]:
        started = Started(len(self._request.prompt), self._start.cached_tokens)
        if self._request.score_from is None:
            return [started]
        first = self._request.prompt[0]
        scores = (TokenInfo(first, self._token_bytes(first), None), *self._prompt_scores)
        return [started, PromptScored(scores[: len(self._request.prompt)])]

    def _score(self, targets: Sequence[int], rows: Sequence[LogitRow], target_logits: F32) -> None:
        for token, row, logit in zip(targets, rows, target_logits, strict=True):
            self._prompt_scores.append(self._describe(token, float(logit) - row.logsumexp, row))

    def _generate(self, row: LogitRow) -> list[Event]:
        drawn = self._sampler.draw(row)
        self._generated.append(drawn.token)
        if drawn.token in self._request.stop_tokens:
            return self._end("stop", self._text.flush(), (), drawn.token)
        logprob = None if self._request.logprobs is None else drawn.logprob
        tokens = (self._describe(drawn.token, logprob, row),)
        text = self._text.feed(tokens[0].data)
        if self._text.match is not None:
            return self._end("stop", text, tokens, self._text.match)
        if len(self._generated) == self._request.max_tokens:
            return self._end("length", text + self._text.flush(), tokens)
        return [TextDelta(text, tokens)]

    def _describe(self, token: int, logprob: float | None, row: LogitRow) -> TokenInfo:
        return TokenInfo(token, self._token_bytes(token), logprob, top_logprobs(row, self._request.logprobs or 0))

    def _end(
        self, reason: FinishReason, text: str, tokens: tuple[TokenInfo, ...], stop: bytes | int | None = None
    ) -> list[Event]:
        finished = self._finish(reason, stop)
        return [TextDelta(text, tokens), finished] if text or tokens else [finished]

    def _finish(self, reason: FinishReason, stop: bytes | int | None = None) -> Finished:
        self.finished = True
        return Finished(reason, len(self._generated), self._seed, stop)
