"""Tokens of an answer that were not drawn, as they follow whatever the model says, and are run together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from rnn_engine.requests import Event, TokenInfo
from rnn_engine.sampling import RunRows, top_logprobs


class GivenTokens:
    """What is still to be run of an answer, up to `end`, and the events that wait for it.

    `unscored` are tokens that lack their log-probability: each is scored by the row of the token before it.
    """

    def __init__(
        self, end: int, unscored: Iterable[TokenInfo] = (), alternatives: int = 0, events: Sequence[Event] = ()
    ) -> None:
        """`end` is a position in the sequence; `alternatives` of each token are wanted."""
        self.end = end
        self.events = list(events)
        self._unscored = deque(unscored)
        self._alternatives = alternatives

    @property
    def is_scored(self) -> bool:
        """Whether all tokens have their log-probabilities."""
        return not self._unscored

    def score(self, rows: RunRows) -> None:
        """Score the next tokens by the rows before them, whose targets are these tokens."""
        for index in range(len(rows)):
            if not self._unscored:  # the last row is that of the token which is drawn next
                return
            info, row = self._unscored.popleft(), rows.row(index)
            info.logprob = rows.target_logit(index) - row.logsumexp
            info.top = top_logprobs(row, self._alternatives)
