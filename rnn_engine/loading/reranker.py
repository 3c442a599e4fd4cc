"""A reranker beside its embedding model: it reads the states of that model, and scores them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError, StepError
from rnn_engine.forward import GpuRunner, Progress
from rnn_engine.hub import model_name
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.model.model_file import ModelFile
from rnn_engine.types import F32, DeviceMemory, ModelShape, State, TokenRun, TracingRunner
from rnn_engine.versions.v7_retrieval import LAYER_INDEX, ScoreHead, ShapeV7Embedding, ShapeV7Reranker

_TOKEN = 0  # the only one


class Reranker:
    """A reranker, whose layers start from matrices of the embedding model. Only for the thread of that model."""

    def __init__(
        self, path: Path, shape: ModelShape, device: str, *, weights: str, num_slots: int, progress: Progress
    ) -> None:
        """Load the reranker in the file `path` for an embedding model with the sizes `shape`.

        `device`, `weights` and `num_slots` are those of the embedding model. Raises ModelError if the file has no
        reranker, or one for a model of other sizes; the message has the path. Raises DeviceError as `load_runner` does.
        """
        self.name = model_name(path)
        self._path = path
        self._settings = device, weights, num_slots
        with open_model(path) as model:
            self._fingerprint = model.fingerprint
            self._layers = _find_layers(model, shape)
            self._head = ScoreHead(model)
            self._runner = self._load(model, progress)

    def score(self, states: Sequence[State]) -> F32:
        """Return log-odds [N] from the states after pairs' texts. Raises StepError if that fails or is not finite."""
        start, size = self._runner.shape.initial_state(), self._runner.num_slots
        scores = []
        for first in range(0, len(states), size):
            batch = []
            for slot, state in enumerate(states[first : first + size]):
                self._runner.write_state(slot, {**start, "wkv": state["wkv"][self._layers]})
                batch.append(TokenRun(slot, (_TOKEN,), rows=1))
            scores.append(self._head.apply(self._runner.trace(batch, ()).logits))
        found = np.concatenate(scores)
        if not np.isfinite(found).all():
            raise StepError("the reranker gives a score that is not finite")
        return found

    @property
    def memory(self) -> DeviceMemory | None:
        return self._runner.memory if isinstance(self._runner, GpuRunner) else None

    def reopen(self, progress: Progress) -> None:
        """Load the reranker onto its device again, after `close`. Raises ModelError if the file was replaced."""
        with open_model(self._path) as model:
            if model.fingerprint != self._fingerprint:
                raise ModelError(f"{self._path}: the weights have changed since they were loaded; restart the server")
            self._runner = self._load(model, progress)

    def close(self) -> None:
        """Free the device's memory. Idempotent."""
        self._runner.close()

    def _load(self, model: ModelFile, progress: Progress) -> TracingRunner:
        device, weights, num_slots = self._settings
        size = RunnerSize(num_slots, max_tokens=num_slots, max_rows=num_slots)
        return load_runner(model, device, size, weights=weights, progress=progress)


def _find_layers(model: ModelFile, shape: ModelShape) -> NDArray[np.integer[Any]]:
    """Return which layers' states a reranker reads of an embedding model. Raises ModelError if the two don't fit."""
    own = model.shape
    if not isinstance(own, ShapeV7Reranker):
        raise ModelError(f"{model.path} holds {own.version}; expected a reranker, whose names begin with reranker.")
    if not isinstance(shape, ShapeV7Embedding):
        raise ModelError(
            f"{model.path}: a reranker reads the states of an embedding model (v7-embedding), and the model is "
            f"{shape.version}"
        )
    if (own.num_heads, own.head_size) != (shape.num_heads, shape.head_size):
        raise ModelError(
            f"{model.path}: the reranker reads states of {own.num_heads} heads of size {own.head_size}; the embedding "
            f"model has {shape.num_heads} of size {shape.head_size}"
        )
    layers = model.tensor(LAYER_INDEX) if model.has(LAYER_INDEX) else np.arange(own.num_layers)
    if not all(0 <= layer < shape.num_layers for layer in layers.tolist()):
        raise ModelError(
            f"{model.path}: the reranker reads the layers {layers.tolist()}; the embedding model has those from 0 to "
            f"{shape.num_layers - 1}"
        )
    return layers
