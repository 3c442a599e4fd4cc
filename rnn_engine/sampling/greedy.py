"""Always the likeliest token."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine.sampling.ranking import Ranking


class Greedy:
    """Takes the first token of the ranking; of equally likely ones that is the one with the lowest id.

    It is a nucleus of one token.
    """

    top_p = 0.0
    top_k = 1
    temperature = 1.0

    num_uniforms = 0
    whole_row = False
    selection = None

    def draw(self, ranking: Ranking, uniforms: Sequence[float]) -> int | None:  # noqa: ARG002
        return 0 if len(ranking.ids) else None

    def drawn(self, ranking: Ranking, index: int) -> None:
        """Carries no state."""
