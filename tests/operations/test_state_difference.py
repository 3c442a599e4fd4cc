"""Distances between two states, by field, layer and head."""

from __future__ import annotations

import numpy as np
import pytest

from rnn_engine.operations.naming import state_difference
from rnn_engine.types import F32
from tests.support.models import tiny_shape

SHAPE = tiny_shape(layers=2, width=8, head_size=4, ffn=8, vocab=24)


def state(seed: int) -> dict[str, F32]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(array.shape, np.float32) for name, array in SHAPE.initial_state().items()}


def test_the_distances_are_those_of_each_layers_heads_and_vectors() -> None:
    first, second = state(1), state(2)
    fields = {field.name: field for field in state_difference(first, second, SHAPE)}
    assert list(fields) == [field.name for field in SHAPE.state_fields]
    matrix = next(field for field in SHAPE.state_fields if len(field.shape) == 3)
    found, num_heads = fields[matrix.name], matrix.shape[0]
    assert found.distances.shape == (2, num_heads)
    for layer in range(2):
        for head in range(num_heads):
            one, two = (each[matrix.name][layer, head].astype(np.float64) for each in (first, second))
            assert found.norms[layer, head] == pytest.approx(np.sqrt((one**2).sum()))
            assert found.distances[layer, head] == pytest.approx(np.sqrt(((one - two) ** 2).sum()))
    vector = next(field for field in SHAPE.state_fields if len(field.shape) == 1)
    assert fields[vector.name].other_norms[:, 0] == pytest.approx(np.linalg.norm(second[vector.name], axis=1))


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 0.0), (0.0, 2.0), (-1.0, 2.0), (3.0, 1.0)])
def test_a_relative_difference_is_from_0_to_2(factor: float, expected: float) -> None:
    first = state(1)
    second = {name: array * np.float32(factor) for name, array in first.items()}
    for field in state_difference(first, second, SHAPE):
        assert field.relative == pytest.approx(np.full(field.norms.shape, expected))


def test_two_empty_states_are_equal() -> None:
    empty = SHAPE.initial_state()
    assert all(not field.relative.any() for field in state_difference(empty, empty, SHAPE))
