"""RWKV-7 in numpy: properties of any model and any cut of a sequence."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from rnn_engine.reference import PackedRuns, Weights, sigmoid
from rnn_engine.versions.v7.reference import WkvInputs, normalize, run_layers, run_wkv
from tests.support.models import random_model, tiny_shape
from tests.support.reference import forward, relative_error

SHAPE = tiny_shape()
MODEL = random_model(SHAPE, seed=30)
TOKENS: list[int] = np.random.default_rng(31).integers(SHAPE.vocab_size, size=24).tolist()


@settings(max_examples=20)
@given(cuts=st.sets(st.integers(1, len(TOKENS) - 1), max_size=6))
def test_a_sequence_may_be_cut_anywhere(cuts: set[int]) -> None:
    whole, last = forward(MODEL, TOKENS, dtype=np.float64)
    state, parts = None, []
    for part in np.split(TOKENS, sorted(cuts)):
        logits, state = forward(MODEL, part.tolist(), state, np.float64)
        parts.append(logits)
    assert relative_error(np.concatenate(parts), whole) < 1e-13
    assert state is not None
    for field, values in last.items():
        assert relative_error(state[field], values) < 1e-13


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), data=st.data())
def test_runs_side_by_side_are_as_alone(lengths: list[int], data: st.DataObject) -> None:
    ids = np.array(data.draw(st.lists(st.sampled_from(TOKENS), min_size=sum(lengths), max_size=sum(lengths))))
    states = random_states(len(lengths))
    weights = Weights(SHAPE, MODEL.tensor, np.float64)
    hidden, after = run_layers(weights, ids, lengths, states)
    ends = np.cumsum(lengths)
    for run, (length, end) in enumerate(zip(lengths, ends, strict=True)):
        alone = {field: values[run : run + 1] for field, values in states.items()}
        part = ids[end - length : end]
        hidden_alone, after_alone = run_layers(weights, part, [length], alone)
        assert relative_error(hidden[end - length : end], hidden_alone) < 1e-13
        for field, values in after_alone.items():
            assert relative_error(np.stack(after[field], axis=1)[run], np.stack(values, axis=1)[0]) < 1e-13


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    num_heads=st.integers(1, 3),
    head_size=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_wkv_is_its_formula(lengths: list[int], num_heads: int, head_size: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    r, decay, k, v, a, b = generator.normal(size=(6, sum(lengths), num_heads, head_size))
    wkv = generator.normal(size=(len(lengths), num_heads, head_size, head_size))
    y, after = run_wkv(WkvInputs(r, decay, k, v, a, b), wkv, PackedRuns.of(lengths))
    token = 0
    for run, length in enumerate(lengths):
        for head in range(num_heads):
            s = wkv[run, head]
            for t in range(token, token + length):
                s = (
                    s @ np.diag(decay[t, head])
                    + np.outer(s @ a[t, head], b[t, head])
                    + np.outer(v[t, head], k[t, head])
                )
                np.testing.assert_allclose(y[t, head], s @ r[t, head], rtol=1e-9, atol=1e-9 * np.abs(s).max())
            np.testing.assert_allclose(after[run, head], s, rtol=1e-9, atol=1e-9 * np.abs(s).max())
        token += length


def test_f32_is_near_f64() -> None:
    logits, state = forward(MODEL, TOKENS)
    exact_logits, exact_state = forward(MODEL, TOKENS, dtype=np.float64)
    assert logits.dtype == np.float32
    assert relative_error(logits, exact_logits) < 1e-5
    for field, values in exact_state.items():
        assert state[field].dtype == np.float32
        assert relative_error(state[field], values) < 1e-5


def test_the_given_state_is_not_changed() -> None:
    _, state = forward(MODEL, TOKENS[:5])
    kept = {field: values.copy() for field, values in state.items()}
    forward(MODEL, TOKENS[5:], state)
    for field, values in state.items():
        assert np.array_equal(values, kept[field])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_stored_type_makes_no_difference(dtype: DTypeLike) -> None:
    logits, _ = forward(random_model(SHAPE, 30, dtype), TOKENS)
    assert np.array_equal(logits, forward(MODEL, TOKENS)[0])


def test_layer_0_has_no_use_for_a_value_residual() -> None:
    without = random_model(SHAPE, 30, layer0_v=False)
    assert not without.has("blocks.0.att.v1")
    assert np.array_equal(forward(without, TOKENS)[0], forward(MODEL, TOKENS)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_arguments_do_not_overflow(dtype: DTypeLike) -> None:
    found = sigmoid(np.array([-1e4, -100.0, 0.0, 100.0, 1e4], dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, [0.0, 0.0, 0.5, 1.0, 1.0], atol=1e-34)


def test_a_zero_vector_has_no_direction() -> None:
    assert normalize(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist() == [[0.0, 0.0], [0.6, 0.8]]


def random_states(count: int) -> dict[str, Any]:
    """Return random states, by field: [B, L, ...]."""
    generator = np.random.default_rng(32)
    initial = SHAPE.initial_state()
    return {field: generator.normal(size=(count, *values.shape)) for field, values in initial.items()}
