"""Share a step's tokens and logit rows out between sequences.

Pure arithmetic: knows neither slots nor what the tokens are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenDemand:
    """What one sequence would run next: 1 token at decode, the rest of its prompt before."""

    tokens: int  # at least 1
    rows: int = 1  # at least 1: how many of the last of them may want a logit row


def share(demands: Sequence[TokenDemand], max_tokens: int, max_rows: int) -> list[int]:
    """How many tokens each sequence runs in this step; `demands` are oldest first, at most either bound many.

    Every sequence gets one token, so that decode always advances and nobody starves. Half of what is left goes
    to the prompts in equal parts, the rest to the oldest first.
    """
    granted = [1] * len(demands)
    tokens_left = max_tokens - len(demands)
    rows_left = max_rows - len(demands)
    prompts = [index for index, demand in enumerate(demands) if demand.tokens > 1]
    scored = sum(demands[index].rows > 1 for index in prompts)
    equal_part = tokens_left // (2 * max(len(prompts), 1)), rows_left // (2 * max(scored, 1))
    for token_limit, row_limit in (equal_part, (max_tokens, max_rows)):
        for index in prompts:
            demand = demands[index]
            rows = _rows(demand, granted[index])
            without_more_rows = demand.tokens - demand.rows + rows - granted[index]
            more = min(
                demand.tokens - granted[index],
                token_limit,
                tokens_left,
                without_more_rows + min(row_limit, rows_left),
            )
            tokens_left -= more
            granted[index] += more
            rows_left -= _rows(demand, granted[index]) - rows
    return granted


def _rows(demand: TokenDemand, tokens: int) -> int:
    """How many rows the first `tokens` of a demand may want."""
    return max(1, tokens - (demand.tokens - demand.rows))
