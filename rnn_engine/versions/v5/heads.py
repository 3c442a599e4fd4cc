"""The decay and the bonus of RWKV-5, made of its tensors for each head and channel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rnn_engine.reference.weights import Array
from rnn_engine.versions.shared.reference import double_exp_decay
from rnn_engine.versions.v5.shape import ShapeV5


def make_decay(lookup: Callable[[str], Array], shape: ShapeV5) -> Array:
    """Return the decay of each key channel in one step. [H, N]"""
    return _for_each_channel(double_exp_decay(lookup("att.time_decay")), shape)


def make_bonus(lookup: Callable[[str], Array], shape: ShapeV5) -> Array:
    """Return the weight u of the current token. [H, N]"""
    u = np.exp(lookup("att.time_first")) if shape.version == "v5.0" else lookup("att.time_faaaa")
    return _for_each_channel(u, shape)


def _for_each_channel(values: Array, shape: ShapeV5) -> Array:
    """[H] or [H, N] -> [H, N]"""
    return np.broadcast_to(values.reshape(shape.num_heads, -1), (shape.num_heads, shape.head_size))
