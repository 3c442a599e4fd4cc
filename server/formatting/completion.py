"""The choices of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine.interface import EngineLike
from rnn_engine.requests import Finished, GenerateRequest, TextDelta, TokenInfo
from server.formatting.choices import Outcome
from server.formatting.logprobs import CompletionTokens
from server.schemas.completions import CompletionChoice, CompletionLogprobs, CompletionRequest


class CompletionFormatter:
    """Formats completion choices; choice number i answers `calls[i]`; those to prompt p begin with `echoes[p]`."""

    id_prefix = "cmpl"
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(
        self,
        engine: EngineLike,
        body: CompletionRequest,
        calls: Sequence[GenerateRequest],
        echoes: Sequence[str],
    ) -> None:
        self._body = body
        self._calls = calls
        self._echoes = echoes
        self._tokens = [CompletionTokens(engine) for _ in calls]

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> CompletionChoice | None:
        if not (self._body.echo or self._body.return_token_ids):
            return None
        choice = self._choice(index, self._echo(index), prompt)
        return self._with_prompt_ids(choice, index)

    def delta(self, index: int, delta: TextDelta) -> CompletionChoice | str | None:
        if self._body.logprobs is None and not self._body.return_token_ids:
            return delta.text or None
        choice = self._choice(index, delta.text, delta.tokens)
        return self._with_ids(choice, delta.tokens)

    def text_chunk(self, index: int, text: str) -> CompletionChoice:
        return self._choice(index, text, ())

    def closing(self, index: int, finished: Finished) -> CompletionChoice:
        choice = self._choice(index, "", _stop_token(finished))
        return {**choice, "finish_reason": finished.reason, "seed": finished.seed}

    def whole(self, index: int, outcome: Outcome, finished: Finished) -> CompletionChoice:
        tokens = [*outcome.prompt, *outcome.tokens, *_stop_token(finished)]
        choice = self._choice(index, self._echo(index) + outcome.text, tokens)
        choice = self._with_ids(self._with_prompt_ids(choice, index), outcome.tokens)
        return {**choice, "finish_reason": finished.reason, "seed": finished.seed}

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._body.copies]

    def _choice(self, index: int, text: str, tokens: Sequence[TokenInfo]) -> CompletionChoice:
        return {"index": index, "text": text, "logprobs": self._logprobs(index, tokens), "finish_reason": None}

    def _logprobs(self, index: int, tokens: Sequence[TokenInfo]) -> CompletionLogprobs | None:
        return None if self._body.logprobs is None else self._tokens[index].describe(tokens)

    def _with_prompt_ids(self, choice: CompletionChoice, index: int) -> CompletionChoice:
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = list(self._calls[index].prompt)
        return choice

    def _with_ids(self, choice: CompletionChoice, tokens: Sequence[TokenInfo]) -> CompletionChoice:
        if self._body.return_token_ids:
            choice["token_ids"] = [info.token for info in tokens]
        return choice


def _stop_token(finished: Finished) -> tuple[TokenInfo, ...]:
    """Return the stop token, if any: it has a log-probability like the others, though it is no part of the text."""
    return () if finished.stop_token is None else (finished.stop_token,)
