"""The likeliest tokens of a row with their log-probabilities, as the model itself sees them."""

from __future__ import annotations

import numpy as np

from rnn_engine.sampling.rows import LogitRow


def top_logprobs(row: LogitRow, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest (token, natural-log probability), likeliest first, equal ones by ascending id."""
    ids, logits = row.ids[:count], row.logits[:count]
    if len(ids) < min(count, row.vocab_size):
        full = row.read_full()
        ids = np.argsort(-full, kind="stable")[:count].astype(np.int32)
        logits = full[ids]
    return tuple((int(token), float(logit) - row.logsumexp) for token, logit in zip(ids, logits, strict=True))
