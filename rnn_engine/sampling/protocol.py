"""The protocol of samplers: how one sequence chooses its next token from a ranked row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rnn_engine.sampling.adjustments import F64
from rnn_engine.sampling.ranking import Places, Ranking


class Sampler(Protocol):
    """A way to choose a token. Every sequence has a sampler of its own, so it may carry state from token to token.

    Random numbers, penalties and bias, the log-probability of what was drawn and the reading of more of a row are
    `SequenceSampler`'s: a sampler sees a ranking whose logits are adjusted already.
    """

    @property
    def num_uniforms(self) -> int:
        """How many random numbers a draw takes: the same for every draw."""
        ...

    @property
    def whole_row(self) -> bool:
        """Whether every draw needs all tokens of the row.

        Where False, a draw is first tried on the few tokens that a step reads back.
        """
        ...

    @property
    def selection(self) -> Callable[[F64], Places] | None:
        """What takes from the adjusted logits [n] of a whole row the places of all tokens that a draw may take.

        It spares the others' ranking: a ranking with `is_selection` has those tokens alone. None: no such selection.
        """
        ...

    def draw(self, ranking: Ranking, uniforms: Sequence[float]) -> int | None:
        """Return the index into `ranking` of the token to take, or None where tokens that are not ranked decide it.

        `uniforms` are numbers from [0, 1). After None the draw is tried again with the same numbers and more of the
        row; a ranking without a rest must settle it. What comes from few candidates must be what comes from the whole
        row. Does not change the sampler.
        """
        ...

    def drawn(self, ranking: Ranking, index: int) -> None:
        """Take note of a draw. Called once for each, with the ranking and the index that settled it."""
        ...
