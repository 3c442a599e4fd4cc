"""The numpy forward pass of a whole sequence, in any precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike

from rnn_engine.reference import Array, Weights, project_to_logits
from rnn_engine.types import Model
from rnn_engine.versions.table import VERSIONS, VersionTable


def forward(
    model: Model,
    tokens: Sequence[int],
    state: Mapping[str, Array] | None = None,
    dtype: DTypeLike = np.float32,
    versions: VersionTable = VERSIONS,
) -> tuple[Array, dict[str, Array]]:
    """Return the logits [T, V] after every token of one sequence, and the state after the last.

    `state` is the state before the first token; None = the initial one. It is not changed.
    """
    weights = Weights(model.shape, model.tensor, dtype)
    before = model.shape.initial_state() if state is None else state
    states = {field.name: before[field.name][np.newaxis] for field in model.shape.state_fields}
    run_layers = versions.get(model.shape.version).run_layers
    hidden, after = run_layers(weights, np.asarray(tokens, np.intp), [len(tokens)], states)
    return project_to_logits(weights, hidden), {name: np.stack(values, axis=1)[0] for name, values in after.items()}


def relative_error(found: Array, expected: Array) -> float:
    """Return the greatest error, relative to the greatest number of the expected array."""
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def mean_divergence(expected: Array, found: Array) -> float:
    """Return the mean KL divergence of the rows of `found`, logits [T, V], from those of `expected`, in nats."""
    p, q = (log_softmax(rows.astype(np.float64)) for rows in (expected, found))
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def log_softmax(rows: Array) -> Array:
    """Return the log-probabilities for rows of logits [..., V]."""
    shifted = rows - rows.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
