"""Mix the next-token rows of several states into one.

With weights w_i, logits l_i and probabilities p_i = softmax(l_i), the mixed distribution is

* `log`: softmax(sum w_i log p_i), the product of the p_i, each raised to its weight. Weights 1 + g and -g contrast one
  state with another, as classifier-free guidance does. The sum of the weights acts as the inverse of a temperature.
* `probability`: sum w_i p_i / sum w_i, as if each token came from one of the states, drawn by their weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from rnn_engine.checks import check_range
from rnn_engine.errors import InvalidRequestError
from rnn_engine.sampling.adjustments import F64
from rnn_engine.types import F32

MixKind: TypeAlias = Literal["log", "probability"]

MAX_WEIGHT = 100.0


def check_weights(weights: Sequence[float], kind: MixKind) -> None:
    """Raise InvalidRequestError where a weight is out of range, or all are 0."""
    for number, weight in enumerate(weights):
        check_range(f"state.{number}.weight", weight, -MAX_WEIGHT if kind == "log" else 0.0, MAX_WEIGHT)
    if not any(weights):
        raise InvalidRequestError("state", list(weights), "at least one weight that is not 0")


def mix_logits(rows: Sequence[F32], weights: Sequence[float], kind: MixKind) -> F32:
    """Return logits [V] of the mixed distribution. A row of weight 0 takes no part, and one of weight 1 stays as it is
    where no other takes part.
    """
    parts = [(row.astype(np.float64), weight) for row, weight in zip(rows, weights, strict=True) if weight != 0.0]
    if kind == "log":
        mixed = sum(weight * row for row, weight in parts)
    elif len(parts) == 1:
        mixed = parts[0][0]
    else:
        mixed = _logsumexp(np.stack([row - _logsumexp(row) + math.log(weight) for row, weight in parts]))
    with np.errstate(over="ignore"):  # what does not fit is infinite, and refused where it is drawn from
        return np.asarray(mixed, np.float32)


def _logsumexp(values: F64) -> F64:
    """Return the log of the sums of exp over the first axis."""
    greatest = values.max(axis=0)
    total: F64 = greatest + np.log(np.exp(values - greatest).sum(axis=0))
    return total
