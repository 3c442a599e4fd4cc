"""The backward passes in numpy, compared with finite differences of the forward passes in f64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.reference import Array, Weights, embed
from rnn_engine.types import ModelShape
from rnn_engine.versions.table import VERSIONS
from rnn_engine.versions.v5 import VersionV5
from rnn_engine.versions.v7.layout import AdapterRanks
from tests.support.models import random_model, tiny_shape
from tests.support.older_models import tiny_v5, tiny_v6

VOCAB = 12
STEP = 5e-6
DIFFERENCES = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}  # the error of their sum is of the order of STEP ** 4


def v7(layers: int, num_heads: int, head_size: int) -> ModelShape:
    ranks = AdapterRanks(w=5, a=3, v=2, g=7)
    return tiny_shape(layers, num_heads * head_size, head_size, ffn=11, vocab=VOCAB, ranks=ranks)


def v6(layers: int, num_heads: int, head_size: int) -> ModelShape:
    return tiny_v6(layers, num_heads * head_size, head_size, ffn=11, vocab=VOCAB, mix_rank=3, decay_rank=4)


def v5(version: VersionV5, layers: int, num_heads: int, head_size: int) -> ModelShape:
    return tiny_v5(version, layers, num_heads * head_size, head_size, ffn=11, vocab=VOCAB)


SHAPES: Mapping[str, Callable[[int, int, int], ModelShape]] = {
    "v7": v7,
    "v6": v6,
    **{version: partial(v5, version) for version in get_args(VersionV5)},
}


@pytest.mark.parametrize("version", SHAPES)
@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    layers=st.integers(1, 3),
    num_heads=st.integers(1, 3),
    head_size=st.integers(4, 8),  # of few numbers a norm leaves little but signs, which have no slope
    seed=st.integers(0, 2**32 - 1),
)
def test_gradients_are_those_of_finite_differences(
    version: str, lengths: list[int], layers: int, num_heads: int, head_size: int, seed: int
) -> None:
    shape = SHAPES[version](layers, num_heads, head_size)
    weights = Weights(shape, random_model(shape, seed).tensor, np.float64)
    generator = np.random.default_rng(seed)
    ids = generator.integers(VOCAB, size=sum(lengths))
    initial = shape.initial_state()
    states = {name: generator.normal(size=(len(lengths), *values.shape)) for name, values in initial.items()}
    dx = generator.normal(size=(len(ids), shape.width))

    gradients = backward(weights, ids, lengths, states, dx)

    assert gradients.keys() == states.keys()
    run_layers = VERSIONS.get(version).run_layers
    for name, gradient in gradients.items():
        direction = generator.normal(size=gradient.shape)
        slope = 0.0
        for steps, factor in DIFFERENCES.items():
            moved = {**states, name: states[name] + steps * STEP * direction}
            slope += factor * np.sum(dx * run_layers(weights, ids, lengths, moved)[0]) / STEP
        least = 1e-2  # of the norms that count: a gradient may be zero, where no squared relu is active
        assert abs(np.sum(gradient * direction) - slope) < 1e-6 * max(float(np.linalg.norm(gradient)), least)


def backward(
    weights: Weights, ids: Array, lengths: list[int], states: Mapping[str, Array], dx: Array
) -> dict[str, Array]:
    """Return the gradients of the sum of dx [T, D] times the last layer's output, with respect to `states`."""
    version = VERSIONS.get(weights.shape.version)
    outputs: list[Array] = []
    version.run_layers(weights.watched(lambda _layer, x: outputs.append(x)), ids, lengths, states)
    assert version.run_backward is not None
    return version.run_backward(weights, [embed(weights, ids), *outputs[:-1]], dx, lengths, states)
