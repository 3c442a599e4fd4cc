"""The versions besides RWKV-7 on every kind of device: the contract of all runners, odd sizes, and long runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rnn_engine.types import ModelShape, Runner, TokenRun, run_step
from rnn_engine.versions.shared.layout import HeadsShape
from tests.support.cpu import make_cpu_runner
from tests.support.gpu import eight_lanes, make_gpu_runner
from tests.support.models import TensorModel, deep_embedded, random_model, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6
from tests.support.reference import forward, relative_error
from tests.support.results_contract import NUM_SLOTS, OTHER_MODELS, MakeRunner, ResultsContract, Timetable, timetables

VERSIONS = list(OTHER_MODELS)
MAX_TOKENS = 640
SIZES: dict[str, ModelShape] = {
    "v6, 8 heads of 17": tiny_v6(layers=1, width=136, head_size=17, vocab=12),
    "v6, 3 heads of 24": tiny_v6(layers=3, width=72, head_size=24, ffn=53, vocab=256),
    "v6, 2 heads of 64": tiny_v6(layers=2, width=128, head_size=64, vocab=12),
    "v5.2, 5 heads of 40": tiny_v5("v5.2", layers=1, width=200, head_size=40, vocab=50277),
    "v5.1, 3 heads of 24": tiny_v5("v5.1", layers=3, width=72, head_size=24, vocab=12),
    "v5.0, one head of 64": tiny_v5("v5.0", layers=2, width=64, head_size=64, vocab=12),
    "v5.0, one head of 128": tiny_v5("v5.0", layers=1, width=128, head_size=128, vocab=256),
    "v4, width 40": tiny_v4(layers=1, width=40, ffn=33, vocab=50277),
    "v4, width 200": tiny_v4(layers=5, width=200, vocab=256),
    "v7 with DeepEmbed": deep_embedded(tiny_shape(layers=1, width=40, head_size=20, ffn=52, vocab=5027)),
    "v7, 2 heads of 20": tiny_shape(layers=2, width=40, head_size=20, vocab=12),
    "v7, one head of 256": tiny_shape(layers=1, width=256, head_size=256),
    **{
        f"{shape.version}, another epsilon": replace(shape, group_norm_epsilon=0.02)
        for shape in (tiny_v6(), tiny_shape(), deep_embedded(tiny_shape()))
    },
}


@pytest.fixture(scope="class", params=["cpu", pytest.param("gpu", marks=eight_lanes)])
def make_runner(request: pytest.FixtureRequest) -> MakeRunner:
    return make_cpu_runner if request.param == "cpu" else make_gpu_runner


class TestResults(ResultsContract):
    @pytest.fixture(scope="class", params=VERSIONS)
    @classmethod
    def model(cls, request: pytest.FixtureRequest) -> TensorModel:
        return OTHER_MODELS[request.param]

    @settings(max_examples=4, suppress_health_check=[HealthCheck.differing_executors])
    @given(timetable=timetables(), slots=st.permutations(range(NUM_SLOTS)))
    def test_results_depend_on_nothing_but_the_sequence(
        self, runner: Runner, model: TensorModel, timetable: Timetable, slots: list[int]
    ) -> None:
        self.check_results(runner, model, timetable, slots)


def gpu_runner(model: TensorModel) -> Runner:
    """Return a runner. All have the same limits, so that they share the kernels of their matmuls."""
    return make_gpu_runner(model, num_slots=2, max_tokens=MAX_TOKENS, max_rows=8, num_candidates=8)


@eight_lanes
@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES.keys())
def test_awkward_sizes(shape: ModelShape) -> None:
    model = random_model(shape, seed=31)
    tokens = np.random.default_rng(32).integers(shape.vocab_size, size=14).tolist()
    logits, state = forward(model, tokens, dtype=np.float64)
    runner = gpu_runner(model)
    run_step(runner, [TokenRun(1, tokens[:9]), TokenRun(0, tokens[:3])])
    readout = run_step(runner, [TokenRun(1, tokens[9:], rows=5)])
    assert relative_error(np.stack([readout.full_row(row) for row in range(5)]), logits[9:]) < 1e-4
    for name, values in runner.read_state(1).items():
        assert relative_error(values, state[name]) < 1e-4, name
    runner.close()


@pytest.mark.parametrize("shape", [tiny_v6(), tiny_shape(), deep_embedded(tiny_shape())], ids=lambda s: s.version)
def test_the_epsilon_of_the_group_norm_changes_logits_and_settings(shape: HeadsShape) -> None:
    model, tokens = random_model(shape, seed=35), [1, 17, 3]
    other = TensorModel(shape.with_group_norm_epsilon(0.02), model.tensors)
    usual, changed = (forward(each, tokens)[0] for each in (model, other))
    assert relative_error(changed, usual) > 1e-3
    assert (shape.settings, other.shape.settings) == ("", "group norm epsilon 0.02")
    assert shape.with_group_norm_epsilon(64 * 1e-5) == shape


@pytest.mark.parametrize("version", VERSIONS)
def test_runs_of_every_length_on_one_slot(version: str) -> None:
    model = OTHER_MODELS[version]
    tokens = np.random.default_rng(33).integers(model.shape.vocab_size, size=600).tolist()
    runner = gpu_runner(model)
    for length in (1, 255, 256, 257, 600):  # lengths packed into 8 bits would fail
        logits, state = forward(model, tokens[:length], dtype=np.float64)
        runner.write_state(1, None)
        readout = run_step(runner, [TokenRun(1, tokens[:length], rows=1)])
        assert relative_error(readout.full_row(0), logits[-1]) < 1e-4
        for name, values in runner.read_state(1).items():
            assert relative_error(values, state[name]) < 1e-4, name
    runner.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_weights_in_f16_cost_less_than_a_hundredth(version: str) -> None:
    exact = OTHER_MODELS[version]
    chance = np.random.default_rng(34)
    tensors = {name: values * chance.uniform(0.999, 1.001, values.shape) for name, values in exact.tensors.items()}
    model = TensorModel(exact.shape, {name: values.astype(np.float32) for name, values in tensors.items()})
    tokens = chance.integers(exact.shape.vocab_size, size=40).tolist()
    logits, _ = forward(model, tokens, dtype=np.float64)
    runner = make_gpu_runner(model, num_slots=2, max_tokens=MAX_TOKENS, max_rows=8, num_candidates=8, weights="f16")
    readout = run_step(runner, [TokenRun(0, tokens, rows=1)])
    assert 1e-6 < relative_error(readout.full_row(0), logits[-1]) < 1e-2
    runner.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_layer_has_at_most_eleven_dispatches(version: str) -> None:
    model = OTHER_MODELS[version]
    runner = make_gpu_runner(model, num_slots=2, max_tokens=MAX_TOKENS, max_rows=8, num_candidates=8)
    labels = [dispatch.label for dispatch in runner.plan(1, 1, 0).dispatches]
    for layer in range(model.shape.num_layers):
        assert sum(label.startswith(f"layer {layer} ") for label in labels) <= 11
    assert len(runner.plan(300, 2, 0).dispatches) == len(runner.plan(1, 1, 0).dispatches)
    runner.close()


def test_tables_of_layers_are_cut_where_a_binding_ends() -> None:
    model = OTHER_MODELS["v7-deepembed"]
    runner = make_gpu_runner(
        model, num_slots=2, max_tokens=16, max_rows=8, num_candidates=4, max_binding_bytes=40 * 1024 * 4
    )
    assert str(runner.plan(1, 1, 0)).count("layer 1 deep embedding") == 3  # 96 tokens, 40 in each part
    tokens = [0, 39, 40, 79, 80, 95]
    logits, _ = forward(model, tokens, dtype=np.float64)
    readout = run_step(runner, [TokenRun(0, tokens, rows=6)])
    assert relative_error(np.stack([readout.full_row(row) for row in range(6)]), logits) < 1e-4
    runner.close()
