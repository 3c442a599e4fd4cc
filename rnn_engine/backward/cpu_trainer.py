"""A trainer that computes with numpy, for machines without a GPU and as the reference for the GPU's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

import numpy as np
from numpy.typing import DTypeLike

from rnn_engine.backward.contract import (
    PackedDocuments,
    check_documents,
    check_optimizer,
    check_training_state,
    trained_fields,
)
from rnn_engine.backward.trainer import Optimizer, TrainingDocument, TrainingState
from rnn_engine.errors import StepError, check_finite
from rnn_engine.forward.pairs import Pairs, half_names
from rnn_engine.reference import Array, RunBackward, RunLayers, Weights, embed, project_to_logits
from rnn_engine.reference.backward import project_to_logits_backward
from rnn_engine.reference.threads import matmul_threads
from rnn_engine.types import F32, Model, State

_ROWS_AT_ONCE = 64  # logit rows of which the loss is computed together, so that no [T, V] is held


class CpuTrainer:
    """A numpy `Trainer`. Weights are cast to `dtype` at first use; the model may be closed after the constructor."""

    def __init__(
        self,
        model: Model,
        run_layers: RunLayers,
        run_backward: RunBackward,
        *,
        optimizer: Optimizer,
        trains_shifts: bool = False,
        pairs: Pairs | None = None,
        state_rate: float | None = None,
        max_documents: int = 8,
        max_tokens: int = 256,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Prepare to train `model`: its initial state, or the low-rank `pairs` with any vectors that they name.

        Beside pairs, the state is trained only if `state_rate` says at how many times their rate.
        Raises InvalidRequestError for settings of the optimizer that are out of range.
        """
        check_optimizer(optimizer)
        self.shape = model.shape
        self._run_layers = run_layers
        self._run_backward = run_backward
        self._optimizer = optimizer
        self.max_documents = max_documents
        self.max_tokens = max_tokens
        self._weights: PairedWeights | None = PairedWeights.read(model, dtype)
        self._initial = model.shape.initial_state()
        self._pairs = pairs
        self._state: dict[str, F32] = {}  # all that is trained, and the rest of an initial state that is
        self._trained: tuple[str, ...] = ()
        if pairs is None or state_rate is not None:
            self._state |= self._initial
            self._trained += trained_fields(model.shape, trains_shifts=trains_shifts)
        if pairs is not None:
            self._state |= {name: np.zeros(shape, np.float32) for name, shape in pairs.shapes.items()}
            self._trained += tuple(pairs.shapes)
        factor = 1.0 if pairs is None or state_rate is None else state_rate
        self._factors = {name: factor if name in self._initial else 1.0 for name in self._trained}  # of the rate
        self._first = {name: np.zeros_like(self._state[name]) for name in self._trained}
        self._second = {name: np.zeros_like(self._state[name]) for name in self._trained}
        self._num_updates = 0
        self._gradient = {name: np.zeros(self._state[name].shape, dtype) for name in self._trained}

    @np.errstate(over="ignore", invalid="ignore")  # a loss that is not finite says so
    def loss(self, documents: Sequence[TrainingDocument]) -> float:
        weights, packed = self._start(documents)
        with matmul_threads(self.shape):
            x, _ = self._run_layers(weights, packed.inputs, packed.lengths, self._initial_states(packed))
            loss, _ = _loss(weights, x, packed, needs_gradient=False)
        return loss

    @np.errstate(over="ignore", invalid="ignore")
    def accumulate(self, documents: Sequence[TrainingDocument], scale: float) -> float:
        weights, packed = self._start(documents)
        states = self._initial_states(packed)
        residuals = [embed(weights, packed.inputs)]  # the input of each layer, and at last the output [T, D]
        watched = weights.watched(lambda _layer, x: residuals.append(x))
        with matmul_threads(self.shape):
            self._run_layers(watched, packed.inputs, packed.lengths, states)
            loss, dx = _loss(weights, residuals[-1], packed, needs_gradient=True)
            learning = weights.learning()
            gradients = self._run_backward(learning, residuals[:-1], dx, packed.lengths, states)  # [documents, L, ...]
        for name, total in self._gradient.items():
            total += scale * (gradients[name].sum(axis=0) if name in gradients else learning.gradients[name])
        return loss

    def gradient(self) -> State:
        return {name: values.astype(np.float32) for name, values in self._gradient.items()}

    def update(self, rate: float) -> float:
        check_finite("rate", rate)
        gradient = {name: values.astype(np.float64) for name, values in self._gradient.items()}
        self._clear_gradient()
        norm = float(np.sqrt(sum(np.square(values).sum() for values in gradient.values())))
        if np.isfinite(norm):
            self._step(gradient, 1.0 if norm <= self._optimizer.max_norm else self._optimizer.max_norm / norm, rate)
        return norm

    def _step(self, gradient: Mapping[str, Array], scale: float, rate: float) -> None:
        """Change the initial state by one step of Adam with `scale` times `gradient`."""
        beta1, beta2 = self._optimizer.beta1, self._optimizer.beta2
        self._num_updates += 1
        first_bias, second_bias = (1 - beta**self._num_updates for beta in (beta1, beta2))
        for name, values in gradient.items():
            first, second = self._first[name], self._second[name]
            first += (1 - beta1) * (scale * values - first)
            second += (1 - beta2) * (np.square(scale * values) - second)
            root = np.sqrt(second / second_bias) + self._optimizer.epsilon
            self._state[name] -= self._factors[name] * rate * (first / first_bias) / root

    def read(self) -> TrainingState:
        return TrainingState(
            {name: values.copy() for name, values in self._state.items()},
            {name: values.copy() for name, values in self._first.items()},
            {name: values.copy() for name, values in self._second.items()},
            self._num_updates,
        )

    def write(self, state: TrainingState) -> None:
        shapes = {name: values.shape for name, values in self._state.items()}
        check_training_state(state, shapes, self._trained)
        self._state = {name: values.copy() for name, values in state.state.items()}
        self._first = {name: values.copy() for name, values in state.first.items()}
        self._second = {name: values.copy() for name, values in state.second.items()}
        self._num_updates = state.num_updates
        self._clear_gradient()

    def close(self) -> None:
        self._weights = None

    def _start(self, documents: Sequence[TrainingDocument]) -> tuple[PairedWeights, PackedDocuments]:
        check_documents(documents, self.max_documents, self.max_tokens)
        if self._weights is None:
            raise StepError("the trainer is closed")
        weights = self._weights if self._pairs is None else self._weights.with_pairs(self._pairs, self._state)
        return weights, PackedDocuments.of(documents)

    def _initial_states(self, packed: PackedDocuments) -> dict[str, Array]:
        """Return the initial state once for each document: {field: [documents, L, ...]}."""
        initial = {name: self._state.get(name, values) for name, values in self._initial.items()}
        return {name: np.broadcast_to(values, (len(packed.lengths), *values.shape)) for name, values in initial.items()}

    def _clear_gradient(self) -> None:
        for values in self._gradient.values():
            values.fill(0)


class PairedWeights(Weights):
    """Weights in numpy with low-rank pairs beside some matrices, and vectors that are trained with these.

    The backward pass adds up the gradients of the pairs and the vectors, if the weights are `learning`.
    """

    _pairs: Pairs | None = None
    _trained: Mapping[str, Array] = {}  # A, B and vectors by their names
    _inputs: dict[str, Array] | None = None  # of the matmuls since `learning`
    gradients: dict[str, Array]

    def with_pairs(self, pairs: Pairs, arrays: Mapping[str, Array]) -> Self:
        """Return a copy with pairs, whose arrays A, B and vectors are among `arrays`."""
        paired = copy(self)
        paired._pairs = pairs
        paired._trained = {name: arrays[name].astype(self.dtype) for name in pairs.shapes}
        return paired

    def learning(self) -> Self:
        """Return a copy that keeps the gradients of pairs and vectors in `gradients`, which begin at nothing."""
        learning = copy(self)
        learning._inputs, learning.gradients = {}, {}
        return learning

    def __call__(self, name: str) -> Array:
        return self._trained[name] if name in self._trained else super().__call__(name)

    def learn(self, name: str, gradients: Array, factors: Array | None = None) -> None:
        if name in self._trained:
            self.gradients[name] = (gradients if factors is None else gradients * factors).sum(axis=0)

    def matmul(self, x: Array, name: str) -> Array:
        y = super().matmul(x, name)
        if self._pairs is not None and name in self._pairs.matrices:
            down, up = (self._trained[half] for half in half_names(name))
            y += (self._pairs.scale * (x @ down.T)) @ up.T
            if self._inputs is not None:
                self._inputs[name] = x
        return y

    def matmul_transposed(self, dy: Array, name: str, x: Array | None = None) -> Array:
        dx = super().matmul_transposed(dy, name)
        if self._pairs is not None and name in self._pairs.matrices:
            down_name, up_name = half_names(name)
            down, up = self._trained[down_name], self._trained[up_name]
            d_hidden = self._pairs.scale * (dy @ up)
            dx += d_hidden @ down
            if self._inputs is not None:
                inputs = self._inputs.pop(name) if x is None else x
                self.gradients[up_name] = dy.T @ (self._pairs.scale * (inputs @ down.T))
                self.gradients[down_name] = d_hidden.T @ inputs
                trained = self._pairs.rank - self._pairs.num_fixed
                self.gradients[up_name][:, trained:] = 0
                self.gradients[down_name][trained:] = 0
        return dx


def _loss(weights: Weights, x: Array, packed: PackedDocuments, *, needs_gradient: bool) -> tuple[float, Array]:
    """Return the loss, and its gradient with respect to the last layer's output x [T, D] if that is needed."""
    loss = 0.0
    dx = np.zeros_like(x)
    counting = np.flatnonzero(packed.weights)
    for rows in np.split(counting, range(_ROWS_AT_ONCE, len(counting), _ROWS_AT_ONCE)):
        logits = project_to_logits(weights, x[rows])  # [R, V]
        own = np.arange(len(rows)), packed.targets[rows]
        log_probabilities = logits - logits.max(axis=-1, keepdims=True)
        log_probabilities -= np.log(np.exp(log_probabilities).sum(axis=-1, keepdims=True))
        loss -= float(log_probabilities[own].astype(np.float64) @ packed.weights[rows])
        if needs_gradient:
            d_logits = np.exp(log_probabilities)
            d_logits[own] -= 1
            d_logits *= packed.weights[rows, np.newaxis]
            dx[rows] = project_to_logits_backward(d_logits, weights, x[rows])
    return loss, dx
