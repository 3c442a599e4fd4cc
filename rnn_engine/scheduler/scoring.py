"""The scores of a prompt's tokens from one position on: what the model gave to each, knowing those before it.

Knows tokens and rows; does not know how the prompt was cut into runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rnn_engine.requests import TokenInfo
from rnn_engine.sampling import LogitRow, top_logprobs
from rnn_engine.types import F32


class PromptScores:
    """Takes the rows that `tokens` are scored by, in their order."""

    def __init__(self, tokens: Sequence[int], alternatives: int, token_bytes: Callable[[int], bytes]) -> None:
        self._unscored = iter(tokens)
        self._alternatives = alternatives
        self._token_bytes = token_bytes
        self._infos: list[TokenInfo] = []

    def take(self, rows: Sequence[LogitRow], target_logits: F32) -> None:
        """The next rows, and the logit in each of the token that it scores. A row after the last token is left out."""
        for row, logit, token in zip(rows, target_logits, self._unscored, strict=False):
            logprob = float(logit) - row.logsumexp
            self._infos.append(
                TokenInfo(token, self._token_bytes(token), logprob, top_logprobs(row, self._alternatives))
            )

    def take_unknown(self) -> None:
        """There is no row that scores the next token."""
        token = next(self._unscored)
        self._infos.append(TokenInfo(token, self._token_bytes(token), None))

    def told(self) -> tuple[TokenInfo, ...]:
        """An entry a token that was taken."""
        return tuple(self._infos)
