"""Vectors of states: compared with numpy by hand, alone and in a batch, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rnn_engine.engine import Engine
from rnn_engine.errors import InvalidRequestError, StepError
from rnn_engine.loading.parts import assemble
from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.operations.embedding import (
    MAX_DIMENSIONS,
    EmbeddingSettings,
    embed,
    finish_vector,
    part_vector,
    run_states,
)
from rnn_engine.operations.parallel import Cost
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.types import F32, InitialState
from tests.support import fake_engine
from tests.support.fake_engine import FakeEngine, encode, state_after
from tests.support.models import random_model, tiny_shape
from tests.support.reference import forward

SHAPE = tiny_shape(layers=3, width=64, head_size=16)
RAW = EmbeddingSettings(layer=-1, normalize=False)
PROJECTED = EmbeddingSettings(pooling="none", layer="all", dimensions=32)


@pytest.fixture
def state() -> Mapping[str, F32]:
    random = np.random.default_rng(7)
    return {
        field.name: random.standard_normal((SHAPE.num_layers, *field.shape), np.float32) for field in SHAPE.state_fields
    }


def by_hand(state: Mapping[str, F32], layer: int, number: Callable[[F32], float], keys: bool) -> list[float]:
    """Return one number for each key, or each value, of each head of a layer."""
    heads = state["wkv"][layer]
    if keys:
        return [number(heads[h, :, k]) for h in range(SHAPE.num_heads) for k in range(SHAPE.head_size)]
    return [number(heads[h, v, :]) for h in range(SHAPE.num_heads) for v in range(SHAPE.head_size)]


def length(vector: NDArray[np.floating[Any]]) -> float:
    return float(sum(float(x) ** 2 for x in vector) ** 0.5)


def mean(vector: F32) -> float:
    return float(sum(float(x) for x in vector) / len(vector))


def test_pooled_forms(state: Mapping[str, F32]) -> None:
    def pooled(settings: EmbeddingSettings) -> F32:
        return part_vector(state, settings, SHAPE)

    assert pooled(replace(RAW, pooling="key_norms")) == pytest.approx(by_hand(state, 2, length, keys=True), rel=1e-5)
    assert pooled(replace(RAW, pooling="value_norms")) == pytest.approx(by_hand(state, 2, length, keys=False), rel=1e-5)
    assert pooled(replace(RAW, pooling="key_means")) == pytest.approx(by_hand(state, 2, mean, keys=True), abs=1e-6)
    assert pooled(replace(RAW, pooling="value_means")) == pytest.approx(by_hand(state, 2, mean, keys=False), abs=1e-6)
    assert pooled(replace(RAW, pooling="none")).tolist() == state["wkv"][2].reshape(-1).tolist()


def test_layers_and_parts(state: Mapping[str, F32]) -> None:
    def shift(settings: EmbeddingSettings) -> list[float]:
        values: list[float] = part_vector(state, replace(settings, part="att_shift"), SHAPE).tolist()
        return values

    rows = state["att_shift"]
    assert shift(RAW) == rows[2].tolist()
    assert shift(replace(RAW, layer=0)) == rows[0].tolist()
    assert shift(replace(RAW, layer=-3)) == rows[0].tolist()
    assert shift(replace(RAW, layer=(2, 0))) == [*rows[2].tolist(), *rows[0].tolist()]
    assert shift(replace(RAW, layer="all")) == rows.reshape(-1).tolist()
    assert shift(replace(RAW, layer="mean")) == pytest.approx([mean(rows[:, d]) for d in range(64)], abs=1e-6)
    assert part_vector(state, replace(RAW, part="ffn_shift", layer=1), SHAPE).tolist() == state["ffn_shift"][1].tolist()


def test_all_joins_both_shifts_and_the_pooled_wkv_at_equal_lengths(state: Mapping[str, F32]) -> None:
    settings = replace(RAW, part="all", layer=1, pooling="value_means")
    pooled = np.array(by_hand(state, 1, mean, keys=False))
    parts = (state["att_shift"][1], pooled, state["ffn_shift"][1])
    expected = np.concatenate([part / length(part) for part in parts])
    assert part_vector(state, settings, SHAPE) == pytest.approx(expected, abs=1e-6)


@given(st.data())
def test_size_is_what_the_vector_has(data: st.DataObject) -> None:
    settings = EmbeddingSettings(
        layer=data.draw(st.one_of(st.integers(-3, 2), st.lists(st.integers(-3, 2), min_size=1), st.just("all"))),
        part=data.draw(st.sampled_from(["att_shift", "ffn_shift", "wkv", "all"])),
        pooling=data.draw(st.sampled_from(["key_norms", "value_norms", "key_means", "value_means", "none"])),
    )
    assert len(part_vector(SHAPE.initial_state(), settings, SHAPE)) == settings.size(SHAPE)


def test_projection_about_keeps_angles() -> None:
    random = np.random.default_rng(3)
    settings = EmbeddingSettings(dimensions=512)
    vectors = random.standard_normal((20, 70_000), np.float32)
    vectors[10:] += vectors[:10]  # ten pairs that are 45 degrees apart
    short = np.stack([finish_vector(vector, settings) for vector in vectors])
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert short.shape == (20, 512)
    assert np.abs(short @ short.T - units @ units.T).max() < 0.2
    assert np.abs(np.diag(short @ short.T, 10) - 2**-0.5).max() < 0.15


def test_projection_never_changes() -> None:
    vector = np.arange(1, 41, dtype=np.float32)
    projected = finish_vector(vector, replace(RAW, dimensions=5))
    assert projected.tolist() == [32.5, 23.0, 37.5, -38.0, 13.0]


def test_projection_tells_every_place_from_every_other() -> None:
    ones = np.zeros((5, 200_000), np.float32)
    for row, place in enumerate((0, 1, 1 << 16, 1 << 17, 199_999)):
        ones[row, place] = 1.0
    projected = [finish_vector(one, EmbeddingSettings(dimensions=64)).tolist() for one in ones]
    assert len(set(map(tuple, projected))) == 5


def test_as_many_dimensions_as_there_are_project_nothing() -> None:
    vector = np.arange(1, 41, dtype=np.float32)
    assert finish_vector(vector, replace(RAW, dimensions=40)).tolist() == vector.tolist()


def test_vector_without_length_stays() -> None:
    assert finish_vector(np.zeros(4, np.float32), EmbeddingSettings()).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "settings",
    [EmbeddingSettings(), PROJECTED, EmbeddingSettings(part="all", layer=-1)],
    ids=["default", "projected", "all"],
)
async def test_vectors_have_length_one_and_do_not_depend_on_the_batch(settings: EmbeddingSettings) -> None:
    inputs = [encode(text) for text in ("one", "two", "a third", "one")]
    together = await embed(FakeEngine(), inputs, settings)
    for tokens, embedding in zip(inputs, together, strict=True):
        [alone] = await embed(FakeEngine(), [tokens], settings)
        assert alone.vector.tolist() == embedding.vector.tolist()
        assert length(embedding.vector) == pytest.approx(1.0, abs=1e-6)
    assert together[0].vector.tolist() == together[3].vector.tolist() != together[1].vector.tolist()


async def test_costs() -> None:
    embeddings = await embed(FakeEngine(cached_tokens=2), [encode("abc"), encode("de")], EmbeddingSettings())
    assert [embedding.cost for embedding in embeddings] == [Cost(3, 2), Cost(2, 2)]


async def test_start_is_passed_on() -> None:
    engine = FakeEngine()
    start = InitialState("a root", engine.info.shape.initial_state())
    [embedding] = await embed(engine, [encode("a")], RAW, initial_state=start)
    expected = part_vector(state_after(encode("a"), "a root"), RAW, engine.info.shape)
    assert embedding.vector.tolist() == expected.tolist()


async def test_states_are_those_after_each_input() -> None:
    found = {number: state async for number, state in run_states(FakeEngine(), [encode("a"), encode("bc")])}
    assert {number: each.cost.prompt_tokens for number, each in found.items()} == {0: 1, 1: 2}
    assert found[1].state["wkv"].tolist() == state_after(encode("bc"))["wkv"].tolist()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"layer": 2}, "layer"),
        ({"layer": -3}, "layer"),
        ({"layer": ()}, "layer"),
        ({"layer": [0, 5]}, "layer"),
        ({"layer": [0] * 200_001}, "layer"),
        ({"layer": [0] * 1025}, "layer"),
        ({"layer": "last"}, "layer"),
        ({"part": "time_shift"}, "part"),
        ({"pooling": "max"}, "pooling"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 65}, "dimensions"),
        ({"dimensions": MAX_DIMENSIONS + 1, "pooling": "none"}, "dimensions"),
    ],
)
async def test_settings_that_are_refused(settings: dict[str, object], field: str) -> None:
    engine = FakeEngine()
    with pytest.raises(InvalidRequestError) as refused:
        await embed(engine, [[1]], EmbeddingSettings(**settings))  # type: ignore[arg-type]
    assert refused.value.field == field
    assert engine.requests == []


def test_vector_that_would_be_too_long_needs_dimensions() -> None:
    large = tiny_shape(layers=12, width=768, head_size=64)
    with pytest.raises(InvalidRequestError, match=r"dimensions: None .* from 1 to 8192, since .* 9216 numbers"):
        EmbeddingSettings(layer="all").check(large)
    EmbeddingSettings(layer="all", dimensions=1024).check(large)
    EmbeddingSettings(layer="mean").check(large)


@pytest.mark.parametrize(
    ("inputs", "field"), [([], "input"), ([[1], []], "input 1"), ([[1], [2, 257]], "input 1 token 1")]
)
async def test_inputs_that_are_refused(inputs: list[list[int]], field: str) -> None:
    engine = FakeEngine()
    with pytest.raises(InvalidRequestError) as refused:
        await embed(engine, inputs, EmbeddingSettings())
    assert refused.value.field == field
    assert engine.requests == []


async def test_state_that_is_not_finite_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {name: np.full_like(array, np.nan) for name, array in state_after([1]).items()}
    monkeypatch.setattr(fake_engine, "state_after", lambda *_: broken)
    with pytest.raises(StepError, match="not finite"):
        await embed(FakeEngine(), [[1]], EmbeddingSettings())


@pytest.mark.parametrize("device", ["cpu", "auto"])
async def test_real_vectors_are_those_of_the_reference(device: str) -> None:
    model = random_model(tiny_shape(vocab=96), seed=11)
    inputs = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [5, 6, 7, 8], [5, 6, 7]]
    expected = []
    for tokens in inputs:
        _, state = forward(model, tokens, None)
        expected.append(finish_vector(part_vector(state, EmbeddingSettings(), model.shape), EmbeddingSettings()))
    runner = load_runner(model, device, RunnerSize(3), weights="f32")
    tokenizer = load_tokenizer("none", Path("none"), model.shape.vocab_size)
    parts = assemble(runner, tokenizer, model="tiny", device=device, weights="f32")  # no cache
    async with Engine(parts) as engine:
        together = await embed(engine, inputs, EmbeddingSettings())
        alone = [(await embed(engine, [tokens], EmbeddingSettings()))[0] for tokens in inputs]
    for vector, one, other in zip(expected, together, alone, strict=True):
        assert one.vector == pytest.approx(vector, abs=1e-5)
        assert other.vector == pytest.approx(vector, abs=1e-5)


def test_vectors_are_bounded_before_projection() -> None:
    large = tiny_shape(layers=2, width=768, head_size=64)
    with pytest.raises(InvalidRequestError, match=r"layer: .* at most 8388608 numbers, not 50331648"):
        EmbeddingSettings(layer=[0] * 1024, pooling="none", dimensions=1).check(large)
