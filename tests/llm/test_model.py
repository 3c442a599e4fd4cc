"""`Model` with every version: logits, states and hidden vectors against the numpy reference in f64."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rnn_engine import Model, State
from rnn_engine.errors import EngineClosedError, InvalidRequestError, StateError
from rnn_engine.reference import Weights
from rnn_engine.types import F32, ModelShape
from rnn_engine.versions.table import VERSIONS
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.frozen import freeze_lora, freeze_state
from tests.support.models import TensorModel, deep_embedded, random_model, save_safetensors, tiny_shape
from tests.support.older_models import OLDER_SHAPES, QWEN2_SHAPES
from tests.support.reference import forward, relative_error

SHAPES = (*OLDER_SHAPES, *QWEN2_SHAPES, deep_embedded(tiny_shape()), tiny_shape(layers=3))
MODELS = {shape.version: random_model(shape, seed=5) for shape in SHAPES}
TOKENS = [int(token) for token in np.random.default_rng(6).integers(0, 96, 65)]
ERROR = 2e-5


@pytest.fixture(
    scope="module", params=[(shape.version, device) for shape in SHAPES for device in ("cpu", "0")], ids=str
)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Model, TensorModel]]:
    version, device = request.param
    path = save_safetensors(MODELS[version], tmp_path_factory.mktemp("model") / "model.safetensors", "f32")
    weights = None if device == "cpu" else "f32"
    with Model(path, device=device, weights=weights, tokenizer="none", max_sequences=3, max_tokens=16) as model:
        yield model, MODELS[version]


def hidden_after(model: TensorModel, layer: int, tokens: list[int]) -> F32:
    """Return the output [T, D] of a layer in f64: that of a model that ends there."""
    shape: ModelShape = replace(model.shape, num_layers=layer + 1)
    states = {name: values[np.newaxis] for name, values in shape.initial_state().items()}
    weights = Weights(shape, model.tensor, np.float64)
    hidden, _ = VERSIONS.get(shape.version).run_layers(weights, np.asarray(tokens), [len(tokens)], states)
    return hidden


@pytest.mark.parametrize("count", [1, 2, 17, 65])
def test_logits_and_state_are_those_of_the_reference(opened: tuple[Model, TensorModel], count: int) -> None:
    model, tensors = opened
    expected, state = forward(tensors, TOKENS[:count], dtype=np.float64)
    logits, after = model.forward(TOKENS[:count])
    assert logits.shape == (96,)
    assert relative_error(logits, expected[-1]) < ERROR
    for name, values in after.items():
        assert relative_error(values, state[name]) < ERROR
    every, same = model.forward(TOKENS[:count], all_logits=True)
    assert relative_error(every, expected) < ERROR
    assert same == after


def test_a_sequence_may_be_divided_into_calls(opened: tuple[Model, TensorModel]) -> None:
    model, _ = opened
    logits, after = model.forward(TOKENS)
    _, state = model.forward(TOKENS[:20])
    _, state = model.forward(TOKENS[20:21], state)
    found, end = model.forward(TOKENS[21:], state)
    assert relative_error(found, logits) < ERROR
    assert (end - after).norm() < ERROR * after.norm()


def test_a_batch_gives_what_each_sequence_gives_alone(opened: tuple[Model, TensorModel]) -> None:
    model, _ = opened
    _, state = model.forward(TOKENS[:7])
    sequences = [(TOKENS[start : start + length], state if start % 2 else None) for start, length in BATCH]
    for all_logits in (False, True):
        together = model.forward_batch(sequences, all_logits=all_logits)
        for (tokens, before), (logits, after) in zip(sequences, together, strict=True):
            alone, end = model.forward(tokens, before, all_logits=all_logits)
            assert relative_error(logits, alone) < ERROR
            assert (end - after).norm() <= ERROR * after.norm()


BATCH = [(0, 1), (1, 40), (2, 3), (3, 16), (4, 17), (5, 60), (6, 2)]


@pytest.mark.parametrize("count", [1, 17, 40])
def test_hidden_vectors_are_those_of_a_model_that_ends_at_the_layer(
    opened: tuple[Model, TensorModel], count: int
) -> None:
    model, tensors = opened
    last = model.shape.num_layers - 1
    traced = model.trace(TOKENS[:count], layers=[-1, 0])
    assert list(traced.hidden) == [0, last]
    for layer, x in traced.hidden.items():
        assert relative_error(x, hidden_after(tensors, layer, TOKENS[:count])) < ERROR
    logits, state = model.forward(TOKENS[:count], all_logits=True)
    assert np.array_equal(traced.logits, logits)
    assert traced.state == state
    assert model.trace(TOKENS[:count]).hidden == {}


@pytest.fixture(scope="module")
def demo() -> Iterator[Model]:
    with Model(device="cpu") as model:
        yield model


def test_the_demo_model_knows_a_capital(demo: Model) -> None:
    tokens = demo.tokenize("User: What is the capital of France?\n\nAssistant: The capital of France is")
    logits, _ = demo.forward(tokens)
    assert demo.detokenize([int(logits.argmax())]) == " Paris"


def test_tokens_may_be_an_array(demo: Model) -> None:
    logits, state = demo.forward(np.array([5, 6, 7]))  # type: ignore[arg-type]
    expected, same = demo.forward([5, 6, 7])
    assert np.array_equal(logits, expected)
    assert state == same


def test_misuse_is_refused_in_words(demo: Model) -> None:
    with pytest.raises(InvalidRequestError, match=r"sequences\.0: \[\] is not allowed; expected at least one token"):
        demo.forward([])
    with pytest.raises(InvalidRequestError, match=r"sequences\.1 token"):
        demo.forward_batch([([1], None), ([10**9], None)])
    with pytest.raises(InvalidRequestError, match="layers: 6 is not allowed; expected layers from -6 to 5"):
        demo.trace([1], layers=[6])
    stranger = State(demo.empty_state(), StateFiles(demo.shape, "b" * 32))
    with pytest.raises(StateError, match="belongs to another model"):
        demo.forward([1], stranger)
    with pytest.raises(InvalidRequestError, match=r"sequences\.0: 'text' is not allowed; expected a list of token ids"):
        demo.forward("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="max_sequences: 0 is not allowed"):
        Model(device="cpu", max_sequences=0)
    with pytest.raises(TypeError, match="a Model can't be copied or pickled"):
        pickle.dumps(demo)


def test_a_closed_model_says_so() -> None:
    with Model(device="cpu") as model:
        pass
    model.close()
    with pytest.raises(EngineClosedError, match="this Model was closed"):
        model.forward([1])


def test_a_state_file_is_read(demo: Model, tmp_path: Path) -> None:
    _, state = demo.forward([1, 2, 3])
    state.save(tmp_path / "three.state")
    assert demo.load_state(tmp_path / "three.state") == state


def test_a_state_with_a_lora_is_not_run_without_it(demo: Model) -> None:
    rows = np.ones((1, demo.shape.width), np.float32)
    lora = freeze_lora({"blocks.0.att.key.weight": (rows, rows.T)}, "test")
    state = State.of(freeze_state(demo.empty_state(), demo.shape, "test", lora=lora), demo.state_files)
    for run in (demo.forward, demo.trace):
        with pytest.raises(StateError, match="a state with a LoRA is not run with it here"):
            run([1], state)


def test_without_a_device_of_webgpu_the_processor_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.gpu.device._list_adapters", list)
    with Model() as model:
        assert model.forward([1])[0].any()
