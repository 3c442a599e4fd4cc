"""Functions that every version's forward pass has in common."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.reference.weights import Array, Lookup, Weights

_LAYER_NORM_EPSILON: Final = 1e-5


def embed(weights: Weights, ids: NDArray[np.integer[Any]]) -> Array:
    """Return the input of the first layer: [T] token ids -> [T, D]."""
    return layer_norm(weights.rows("emb.weight", ids), weights.block(0), "ln0")


def project_to_logits(weights: Weights, x: Array) -> Array:
    """Return the logits after the last layer's output x: [R, D] -> [R, V]."""
    return weights.matmul(layer_norm(x, weights, "ln_out"), "head.weight")


def layer_norm(x: Array, lookup: Lookup, name: str) -> Array:
    """Normalise each vector of x [T, D], with the weight and bias called `name`."""
    return standardize(x, _LAYER_NORM_EPSILON) * lookup(f"{name}.weight") + lookup(f"{name}.bias")


def standardize(x: Array, epsilon: float) -> Array:
    """Scale x to mean 0 and variance 1 along its last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    standard: Array = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    return standard


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    probability: Array = 1 / (1 + np.exp(np.minimum(-x, 80)))  # e^80 is finite in f32, and its inverse as good as 0
    return probability
