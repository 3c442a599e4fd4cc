"""The protocol of a trainer, of a state or of low-rank pairs; `rnn_engine.training` has the data and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rnn_engine.types import F32, I32, ModelShape, State


@dataclass(frozen=True, slots=True, eq=False)
class TrainingDocument:
    """A text to learn from, whose first token follows the initial state. Its n tokens have n - 1 predictions."""

    tokens: I32  # [n], at least two
    weights: F32  # [n]: how much the prediction of each token counts in the loss; that of the first token is 0

    @property
    def num_inputs(self) -> int:
        """The number of tokens that the model runs: all except the last, which is only predicted."""
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The settings of Adam (Kingma and Ba, 2015) without weight decay, and the bound on a gradient's norm."""

    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8
    max_norm: float = 1.0  # a gradient with a greater Euclidean norm, over all trained fields, is scaled down to it


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """What a trainer continues from: its parameters, Adam's moments, and the number of updates so far.

    The parameters are the fields of an initial state {field: [L, ...]}, or low-rank pairs {name of A or B: matrix} and
    vectors of the model by their names.
    """

    state: State  # the parameters, with those that are not trained
    first: State  # the running mean of the gradients; only of what is trained
    second: State  # the running mean of their squares
    num_updates: int


class Trainer(Protocol):
    """Trains the initial state of a model, or low-rank pairs beside its matrices, by gradient descent. Not thread-safe.

    Of a state, the fields of kind MATRIX are trained, and those of kind SHIFT if the trainer was made so. The loss of
    documents is the sum of -log p(token | tokens before it) times the token's weight, in nats, over all their
    predictions.
    The same calls give the same numbers, bit for bit, on one device.
    """

    @property
    def shape(self) -> ModelShape: ...

    @property
    def max_tokens(self) -> int:
        """The most inputs (`TrainingDocument.num_inputs`) of all documents of one call together."""

    @property
    def max_documents(self) -> int: ...

    def loss(self, documents: Sequence[TrainingDocument]) -> float:
        """Return the loss of `documents`. Raises InvalidRequestError for too many of them, or for wrong tokens."""

    def accumulate(self, documents: Sequence[TrainingDocument], scale: float) -> float:
        """Add `scale` times the gradient of the loss of `documents`; return that loss. Raises as `loss` does."""

    def gradient(self) -> State:
        """Return a copy of the gradient so far: an array for each that is trained."""

    def update(self, rate: float) -> float:
        """Change the parameters by one step of Adam at learning rate `rate`, and clear the gradient so far.

        Return the gradient's Euclidean norm before it was bounded. If it is not finite, nothing is changed but the
        gradient.
        """

    def read(self) -> TrainingState:
        """Return copies of the parameters and of Adam's moments."""

    def write(self, state: TrainingState) -> None:
        """Continue from `state`, and clear the gradient so far. Raises InvalidRequestError if it does not fit."""

    def close(self) -> None:
        """Free what the trainer holds on a device. Idempotent."""
