"""The heads of EmbeddingRWKV and of its rerankers in numpy: from rows of D features to vectors, or to scores."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rnn_engine.reference import Weights, layer_norm
from rnn_engine.types import F32, EmbeddingTask, Model
from rnn_engine.versions.v7_retrieval.layout import TASKS


class TaskHeads:
    """The heads of an EmbeddingRWKV. The model may be closed after the constructor returns."""

    def __init__(self, model: Model) -> None:
        self._weights = _read(model, (name for name in model.names if name.startswith("head.")))

    def apply(self, features: F32, task: EmbeddingTask) -> F32:
        """Return the vectors [N, D] for `task` of texts with these `features` [N, D]."""
        head, weights = TASKS[task], self._weights
        hidden = np.maximum(weights.matmul(features, f"{head}.fc1.weight"), 0)
        vectors: F32 = layer_norm(features + weights.matmul(hidden, f"{head}.fc2.weight"), weights, f"{head}.norm")
        return vectors


class ScoreHead:
    """The head of a reranker. The model may be closed after the constructor returns."""

    def __init__(self, model: Model) -> None:
        self._weights = _read(model, ("head.0.weight", "head.0.bias", "head.2.weight"))

    def apply(self, features: F32) -> F32:
        """Return the scores [N] of pairs with these `features` [N, D], as log-odds."""
        weights = self._weights
        hidden = np.tanh(weights.matmul(features, "head.0.weight") + weights("head.0.bias"))
        scores: F32 = weights.matmul(hidden, "head.2.weight")[:, 0]
        return scores


def _read(model: Model, names: Iterable[str]) -> Weights:
    return Weights(model.shape, {name: model.tensor(name) for name in names}.__getitem__)
