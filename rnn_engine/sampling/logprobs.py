"""The likeliest tokens of a row with their log-probabilities, as the model itself sees them."""

from __future__ import annotations

from rnn_engine.sampling.rows import LogitRow


def top_logprobs(row: LogitRow, count: int) -> tuple[tuple[int, float], ...]:
    """Return the `count` likeliest (token, natural-log probability), likeliest first, equal ones by ascending id.

    Of a masked row, the likeliest of the allowed tokens, with their probabilities in the whole row.
    """
    wide = row
    if len(row.ids) < min(count, row.num_allowed):
        wide = LogitRow.of_full(row.read_full(), count, row.mask)
    ids, logits = wide.ids[:count].tolist(), wide.logits[:count].tolist()
    return tuple((token, logit - row.logsumexp) for token, logit in zip(ids, logits, strict=True))
