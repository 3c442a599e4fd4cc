"""Parts of the backward passes in numpy that all RWKV versions share: those of the norms, the activations and the head.

Each function is named after the one of the forward pass whose gradient it computes. It takes the gradient of that
function's result first, called dy, and returns that of its input x. Weights have no gradients.
"""

from __future__ import annotations

import numpy as np

from rnn_engine.reference import Array, Lookup, Weights
from rnn_engine.types import LAYER_NORM


def project_to_logits_backward(d_logits: Array, weights: Weights, x: Array) -> Array:
    """Return the gradient [R, D] of x, the output of the last layer, from that of the logits, [R, V]."""
    names = weights.shape.tensor_names
    return layer_norm_backward(weights.matmul_transposed(d_logits, names.head), x, weights, names.head_norm)


def layer_norm_backward(dy: Array, x: Array, lookup: Lookup, name: str) -> Array:
    """Return the gradient [T, D] of x from that of its layer norm, with the weight of the norm called `name`."""
    return standardize_backward(dy * lookup(f"{name}.weight"), x, LAYER_NORM.epsilon)


def standardize_backward(dy: Array, x: Array, epsilon: float) -> Array:
    """Return the gradient of x from that of y, x standardized: (dy - mean(dy) - y mean(dy y)) / s, on the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    y = centred / scale
    dx: Array = (dy - dy.mean(axis=-1, keepdims=True) - y * (dy * y).mean(axis=-1, keepdims=True)) / scale
    return dx


def sigmoid_backward(dy: Array, y: Array) -> Array:
    """Return the gradient of x from that of y = sigmoid(x)."""
    dx: Array = dy * y * (1 - y)
    return dx


def tanh_backward(dy: Array, y: Array) -> Array:
    """Return the gradient of x from that of y = tanh(x)."""
    dx: Array = dy * (1 - np.square(y))
    return dx
