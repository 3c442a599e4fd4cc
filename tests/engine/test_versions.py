"""Every version through the engine: cache, scoring, named and initial states, files of states, embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rnn_engine.engine import Engine
from rnn_engine.errors import ModelError, StateError
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings, StateFile, StateSettings
from rnn_engine.operations.embedding import EmbeddingSettings, embed
from rnn_engine.operations.naming import advance_state, create_state
from rnn_engine.operations.scoring import score_choices
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, Started
from rnn_engine.types import InitialState, ModelShape, State
from rnn_engine.versions.v5 import ShapeV5
from rnn_engine_states.files.prefab import prefab_dims, rows_from_state, state_from_rows
from rnn_engine_states.files.reading import tensor_name
from rnn_engine_states.named.entry import Retention
from tests.support.models import TensorModel, deep_embedded, random_model, save_safetensors, tiny_shape
from tests.support.older_models import OLDER_SHAPES, QWEN2_SHAPES, tiny_v4, tiny_v5
from tests.support.reference import forward, relative_error

SHAPES = (*OLDER_SHAPES, *QWEN2_SHAPES, deep_embedded(tiny_shape()), tiny_shape())
PROMPT = [int(token) for token in np.random.default_rng(41).integers(0, 96, 50)]
GREEDY = SamplingParams(temperature=0.0)

every_version = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.version)


@asynccontextmanager
async def loaded(
    model: TensorModel,
    folder: Path,
    states: StateSettings = StateSettings(),  # noqa: B008 - it is frozen
    epsilon: float | None = None,
) -> AsyncGenerator[Engine, None]:
    path = save_safetensors(model, folder / "model.safetensors")
    settings = LoadSettings("cpu", "none", v5_group_norm_epsilon=epsilon)
    async with asyncio.timeout(60), await Engine.load(path, settings, num_slots=2, states=states) as engine:
        yield engine


async def run(
    engine: Engine, prompt: Sequence[int], initial_state: InitialState | None = None
) -> tuple[Started, Finished, list[int]]:
    request = GenerateRequest(
        prompt, initial_state=initial_state, max_tokens=5, stop_tokens=(), sampling=GREEDY, keep_end=True
    )
    events = [event async for event in engine.generate(request)]
    started, finished = events[0], events[-1]
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    return started, finished, [token.token for event in events for token in getattr(event, "tokens", ())]


def greedy(model: TensorModel, prompt: Sequence[int], state: State | None = None) -> list[int]:
    """Return the five greedy tokens after a prompt, by the reference."""
    tokens = list(prompt)
    for _ in range(5):
        logits, _ = forward(model, tokens, state, np.float64)
        tokens.append(int(logits[-1].argmax()))
    return tokens[len(prompt) :]


@every_version
async def test_answers_from_the_cache_are_those_of_the_reference(shape: ModelShape, tmp_path: Path) -> None:
    model = random_model(shape, seed=42)
    async with loaded(model, tmp_path) as engine:
        for prompt, cached in ((PROMPT, 0), (PROMPT, 50), ([*PROMPT, 3, 4], 50)):
            started, finished, tokens = await run(engine, prompt)
            assert started.cached_tokens == cached
            assert tokens == greedy(model, prompt)
            assert finished.end is not None
            _, state = forward(model, [*prompt, *tokens], dtype=np.float64)
            for name, values in finished.end.state.items():
                assert relative_error(values, state[name]) < 1e-4, name


@every_version
async def test_choices_are_scored_by_the_references_logits(shape: ModelShape, tmp_path: Path) -> None:
    model = random_model(shape, seed=42)
    choices = [[5, 6], [7]]
    async with loaded(model, tmp_path) as engine:
        scores = await score_choices(engine, PROMPT, choices)
    for score, choice in zip(scores, choices, strict=True):
        logits, _ = forward(model, [*PROMPT, *choice], dtype=np.float64)
        rows = logits[len(PROMPT) - 1 : -1]
        logprobs = rows[range(len(choice)), choice] - np.log(np.exp(rows).sum(axis=1))
        assert score.total == pytest.approx(logprobs.sum(), rel=1e-4)


@every_version
async def test_a_state_goes_through_ai00s_form_and_is_continued(shape: ModelShape, tmp_path: Path) -> None:
    model = random_model(shape, seed=42)
    _, state = forward(model, PROMPT[:20])
    rows = rows_from_state(state, shape)
    again = state_from_rows(rows, prefab_dims(shape), shape, "rows")
    async with loaded(model, tmp_path) as engine:
        _, _, tokens = await run(engine, PROMPT[20:], InitialState("rows", again))
    assert tokens == greedy(model, PROMPT)


@every_version
async def test_a_named_state_outlives_the_engine_and_is_advanced(shape: ModelShape, tmp_path: Path) -> None:
    model = random_model(shape, seed=42)
    settings = StateSettings(folder=tmp_path / "states")
    async with loaded(model, tmp_path, states=settings) as engine:
        await create_state(engine, "kept", PROMPT[:20], Retention(persistent=True))
    async with loaded(model, tmp_path, states=settings) as engine:
        advanced, _ = await advance_state(engine, "kept", PROMPT[20:40])
        _, _, tokens = await run(engine, PROMPT[40:], advanced.frozen.for_request)
    assert tokens == greedy(model, PROMPT)


@every_version
async def test_states_are_embedded(shape: ModelShape, tmp_path: Path) -> None:
    async with loaded(random_model(shape, seed=42), tmp_path) as engine:
        for settings in (EmbeddingSettings(), EmbeddingSettings(part="all", layer=-1), EmbeddingSettings(dimensions=8)):
            one, other = await embed(engine, [PROMPT, PROMPT[::-1]], settings)
            assert len(one.vector) == settings.dimensions or settings.size(shape)
            assert np.linalg.norm(one.vector) == pytest.approx(1)
            assert not np.allclose(one.vector, other.vector)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.version != "v4"], ids=lambda shape: shape.version)
async def test_a_tuned_state_is_where_a_text_begins(shape: ModelShape, tmp_path: Path) -> None:
    model = random_model(shape, seed=42)
    state = shape.initial_state()
    state["wkv"] = np.random.default_rng(43).normal(size=state["wkv"].shape).astype(np.float32)
    tuned = {
        tensor_name(layer): np.ascontiguousarray(values.swapaxes(1, 2)) for layer, values in enumerate(state["wkv"])
    }
    save_file(tuned, tmp_path / "tuned.safetensors")
    files = StateSettings(files=[StateFile(tmp_path / "tuned.safetensors", "tuned")])
    async with loaded(model, tmp_path, states=files) as engine:
        named = await engine.states.get("tuned")
        _, _, tokens = await run(engine, PROMPT, named.frozen.for_request)
    assert tokens == greedy(model, PROMPT, state)


async def test_v4_has_no_tuned_states_and_says_so(tmp_path: Path) -> None:
    save_file({tensor_name(layer): np.zeros((4, 16, 16), np.float32) for layer in range(2)}, tmp_path / "tuned")
    files = StateSettings(files=[StateFile(tmp_path / "tuned", "tuned")])
    with pytest.raises(
        StateError, match="tuned: a tuned state has one matrix for each head; a v4 state has no such field"
    ):
        async with loaded(random_model(tiny_v4(), seed=42), tmp_path, states=files):
            pass


async def test_the_epsilon_of_v5_changes_results_and_fingerprint(tmp_path: Path) -> None:
    model = random_model(tiny_v5(), seed=42)
    ends = []
    for epsilon in (None, 1e-5):
        async with loaded(model, tmp_path, epsilon=epsilon) as engine:
            assert isinstance(engine.info.shape, ShapeV5)
            changed = TensorModel(engine.info.shape, model.tensors)
            _, finished, tokens = await run(engine, PROMPT)
            assert finished.end is not None
            _, state = forward(changed, [*PROMPT, *tokens], dtype=np.float64)
            assert relative_error(finished.end.state["wkv"], state["wkv"]) < 1e-4
            ends.append(finished.end.state["wkv"])
    assert relative_error(*ends) > 1e-4
    path = tmp_path / "model.safetensors"
    with open_model(path) as usual, open_model(path, v5_group_norm_epsilon=1e-5) as other:
        assert usual.fingerprint != other.fingerprint


async def test_the_epsilon_of_v5_is_refused_for_other_versions(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a group norm epsilon of 1e-05 is not allowed for RWKV v7"):
        async with loaded(random_model(tiny_shape(), seed=42), tmp_path, epsilon=1e-5):
            pass
