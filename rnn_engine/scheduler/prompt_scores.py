"""The log-probabilities of a prompt's tokens, from the rows of the steps that run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rnn_engine.requests import GenerateRequest, TokenInfo
from rnn_engine.sampling import LogitRow, RunRows, top_logprobs


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

    def take(self, rows: RunRows) -> None:
        """Score the next tokens by `rows`, whose targets are these tokens; leave out a row after the last."""
        for index in range(len(rows)):
            self.take_row(rows.row(index), rows.target_logit(index))

    def take_row(self, row: LogitRow, logit: float) -> None:
        """Score the next token, if there is one, by the row before it, whose logit at the token is `logit`."""
        token = next(self._unscored, None)
        if token is not None:
            top = top_logprobs(row, self._alternatives)
            self._infos.append(TokenInfo(token, self._token_bytes(token), logit - row.logsumexp, top))

    def take_unknown(self) -> None:
        """Leave the next token without a score, as no row is known before it."""
        token = next(self._unscored)
        self._infos.append(TokenInfo(token, self._token_bytes(token), None))


def begin_scores(
    request: GenerateRequest, num_candidates: int, token_bytes: Callable[[int], bytes]
) -> PromptScores | None:
    """Return the scores of a request's prompt, None where it asks for none.

    The prompt's first token is taken where it is scored, for no row of a step scores it: by the logits that the request
    starts from, of which `num_candidates` are sorted, if it has some.
    """
    first = request.score_from
    if first is None:
        return None
    tokens = request.prompt[first:]
    scores = PromptScores(tokens, request.logprobs or 0, token_bytes)
    if first > 0 or len(tokens) == 0:
        return scores
    logits = None if request.initial_state is None else request.initial_state.logits
    if logits is None:
        scores.take_unknown()
    else:
        scores.take_row(LogitRow.of_full(logits, num_candidates), logits.item(tokens[0]))
    return scores
