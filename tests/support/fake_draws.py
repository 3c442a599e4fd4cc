"""How a runner without a model draws, with biases, and with penalties that it keeps for each slot as a device does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rnn_engine.sampling import LogitRow, SamplingParams, SequenceSampler, top_logprobs
from rnn_engine.types import F32, DrawPenalties, TokenDraw, TokenLogprobs


def tell(row: F32, token: int, count: int) -> TokenLogprobs:
    """Return the log-probabilities that a device tells with a token."""
    whole = LogitRow.of_full(row, count)
    return TokenLogprobs(row.item(token) - whole.logsumexp, top_logprobs(whole, count))


@dataclass
class SlotDraws:
    """Draws for one slot, token by token."""

    penalties: DrawPenalties | None = None  # of the latest draw
    less: dict[int, float] = field(default_factory=dict)  # by token, what is taken off

    def begin(self, draw: TokenDraw, ran: Sequence[int]) -> None:
        """Begin with what a run says that has run the tokens `ran`."""
        if draw.penalties is not self.penalties:
            self.penalties, self.less = draw.penalties, {}
            earlier = None if self.penalties is None else self.penalties.earlier
            if earlier is not None:
                self.less = {token: earlier.item(token) for token in np.flatnonzero(earlier).tolist()}
        if draw.counts_input:
            self._count(ran[-1])

    def draw(self, draw: TokenDraw, index: int, row: F32) -> int:
        """Draw the token at `index` of the text."""
        added = {token: -less for token, less in self.less.items()}
        if draw.biases is not None:
            for token, value in zip(draw.biases.tokens.tolist(), draw.biases.values.tolist(), strict=True):
                added[token] = added.get(token, 0.0) + value
        sampling = SamplingParams(
            temperature=draw.temperature,
            top_p=draw.top_p,
            top_k=draw.top_k,
            min_p=draw.min_p or 0.0,
            logit_bias=added,
        )
        sampler = SequenceSampler(sampling, draw.seed)
        sampler.index = index
        token = sampler.draw(LogitRow.of_full(row, len(row))).token
        self._count(token)
        return token

    def _count(self, token: int) -> None:
        if self.penalties is None:
            return
        self.less = {seen: less * self.penalties.decay for seen, less in self.less.items()}
        first = 0.0 if token in self.less else self.penalties.presence
        self.less[token] = self.less.get(token, 0.0) + self.penalties.frequency + first
