"""The draws of a runner without a model, with biases, and with penalties kept for each slot as on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.ranking import LogitRow, top_logprobs
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from rnn_engine.types import F32, DrawPenalties, TokenDraw, TokenLogprobs


def tell(row: F32, token: int, count: int) -> TokenLogprobs:
    """Return the log-probabilities that a device returns with a token."""
    whole = LogitRow.of_full(row, count)
    return TokenLogprobs(row.item(token) - whole.logsumexp, top_logprobs(whole, count))


@dataclass
class SlotDraws:
    """Draws for one slot, token by token."""

    penalties: DrawPenalties | None = None  # of the latest draw
    less: dict[int, float] = field(default_factory=dict)  # by token, the amount subtracted from its logit
    seen: dict[int, int] = field(default_factory=dict)  # by token, the place at which it was last seen
    num_seen: int = 0

    def begin(self, draw: TokenDraw, ran: Sequence[int]) -> None:
        """Begin the draws of a run that ran the tokens `ran`."""
        if draw.penalties is not self.penalties:
            self.penalties, self.less, self.seen, self.num_seen = draw.penalties, {}, {}, 0
            if self.penalties is not None and (earlier := self.penalties.earlier) is not None:
                self.less = {token: earlier.item(token) for token in np.flatnonzero(earlier).tolist()}
            if self.penalties is not None and (seen := self.penalties.seen) is not None:
                self.seen = {token: seen.item(token) for token in np.flatnonzero(seen).tolist()}
                self.num_seen = max(self.seen.values(), default=0)
        if draw.counts_input:
            self._count(ran[-1])

    def draw(self, draw: TokenDraw, index: int, row: F32) -> int:
        """Draw the token at `index` of the text."""
        biases: dict[int, float] = {}
        if draw.biases is not None:
            biases = dict(zip(draw.biases.tokens.tolist(), draw.biases.values.tolist(), strict=True))
        added = {token: self._add(token, row.item(token), biases) for token in {*biases, *self.less, *self.seen}}
        sampling = SamplingParams(
            temperature=draw.temperature, top_p=draw.top_p, top_k=draw.top_k, min_p=draw.min_p or 0.0, logit_bias=added
        )
        sampler = SequenceSampler(sampling, draw.seed)
        sampler.index = index
        token = sampler.draw(LogitRow.of_full(row, len(row))).token
        self._count(token)
        return token

    def _add(self, token: int, logit: float, biases: dict[int, float]) -> float:
        """Return the amount to add to a token's logit."""
        biased = logit + biases.get(token, 0.0)
        if self.penalties is not None and self._is_recent(token, self.penalties.window):
            biased = biased / self.penalties.repeat if biased > 0.0 else biased * self.penalties.repeat
        return biased - self.less.get(token, 0.0) - logit

    def _is_recent(self, token: int, window: int | None) -> bool:
        place = self.seen.get(token, 0)
        return place > 0 and (window is None or place > self.num_seen - window)

    def _count(self, token: int) -> None:
        if self.penalties is None:
            return
        self.num_seen += 1
        self.seen[token] = self.num_seen
        self.less = {seen: less * self.penalties.decay for seen, less in self.less.items()}
        first = 0.0 if token in self.less else self.penalties.presence
        self.less[token] = self.less.get(token, 0.0) + self.penalties.frequency + first
