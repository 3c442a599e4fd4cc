"""A trainer without a model: a document's loss is the squared distance of the state from the document's mean token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnn_engine.backward import TrainingDocument, TrainingState
from rnn_engine.backward.contract import check_documents
from rnn_engine.types import F32, ModelShape, State
from tests.support.models import tiny_shape

WIDTH = 16


def _check_document(document: TrainingDocument, vocab_size: int) -> None:
    """Check what all trainers rely on."""
    tokens, weights = document.tokens, document.weights
    assert tokens.ndim == 1
    assert len(tokens) >= 2
    assert np.issubdtype(tokens.dtype, np.integer)
    assert tokens.min() >= 0
    assert tokens.max() < vocab_size
    assert weights.shape == tokens.shape
    assert np.isfinite(weights).all()
    assert weights.min() >= 0
    assert weights[0] == 0


def _target(document: TrainingDocument) -> float:
    return float(document.tokens.mean()) / 10


def _copy(state: State) -> State:
    return {name: values.copy() for name, values in state.items()}


class FakeTrainer:
    """A `Trainer` that moves all numbers of the matrices towards the mean token of the documents, by Adam."""

    def __init__(self, max_tokens: int = 60, max_documents: int = 4, breaks_above: float = np.inf) -> None:
        """Make a trainer whose loss is NaN from a state on with a number greater than `breaks_above`."""
        self.shape: ModelShape = tiny_shape(layers=1, width=WIDTH, head_size=WIDTH)
        self.max_tokens = max_tokens
        self.max_documents = max_documents
        self.calls: list[int] = []  # the numbers of documents of the calls of `accumulate`
        self.rates: list[float] = []
        self._breaks_above = breaks_above
        state = self.shape.initial_state()
        self._training = TrainingState(
            state, {"wkv": np.zeros_like(state["wkv"])}, {"wkv": np.zeros_like(state["wkv"])}, 0
        )
        self._gradient: F32 = np.zeros_like(state["wkv"])

    @property
    def _wkv(self) -> F32:
        return self._training.state["wkv"]

    def loss(self, documents: Sequence[TrainingDocument]) -> float:
        check_documents(documents, self.max_documents, self.max_tokens)
        for document in documents:
            _check_document(document, self.shape.vocab_size)
        if np.abs(self._wkv).max() > self._breaks_above:
            return float("nan")
        return float(
            sum(document.weights.sum() * np.square(self._wkv - _target(document)).mean() for document in documents)
        )

    def accumulate(self, documents: Sequence[TrainingDocument], scale: float) -> float:
        loss = self.loss(documents)
        self.calls.append(len(documents))
        for document in documents:
            slope = scale * document.weights.sum() * 2 / self._wkv.size
            self._gradient += (slope * (self._wkv - _target(document)) * (1.0 if loss == loss else np.nan)).astype("f4")
        return loss

    def gradient(self) -> State:
        return {"wkv": self._gradient.copy()}

    def update(self, rate: float) -> float:
        self.rates.append(rate)
        gradient, self._gradient = self._gradient, np.zeros_like(self._gradient)
        norm = float(np.linalg.norm(gradient))
        if np.isfinite(norm):
            old, count = self._training, self._training.num_updates + 1
            first = (0.9 * old.first["wkv"] + 0.1 * gradient).astype(np.float32)
            second = (0.99 * old.second["wkv"] + 0.01 * gradient**2).astype(np.float32)
            step = rate * (first / (1 - 0.9**count)) / (np.sqrt(second / (1 - 0.99**count)) + 1e-8)
            state = {**old.state, "wkv": (old.state["wkv"] - step).astype(np.float32)}
            self._training = TrainingState(state, {"wkv": first}, {"wkv": second}, count)
        return norm

    def read(self) -> TrainingState:
        old = self._training
        return TrainingState(_copy(old.state), _copy(old.first), _copy(old.second), old.num_updates)

    def write(self, state: TrainingState) -> None:
        self._training = state
        self._training = self.read()
        self._gradient = np.zeros_like(self._gradient)

    def close(self) -> None:
        pass
