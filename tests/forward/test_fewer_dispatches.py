"""Steps of one token with as few dispatches as on hardware, between steps of several tokens."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.tuning import tuning_for
from rnn_engine.forward.variants import StreamVariant
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.gpu import SizingDevice
from rnn_engine.types import ModelShape, TokenRun, run_step
from tests.support.models import deep_embedded, random_model, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v6, tiny_v6_qwen2, tiny_v7_qwen2
from tests.support.quantised import rounded
from tests.support.reference import forward
from tests.support.tuned import load_with_matmuls

NORMED = StreamVariant(tokens=1, splits=2, inputs="normed")  # 16 threads
SHAPES: dict[str, ModelShape] = {
    "v7, no multiple of the threads": tiny_shape(width=40, head_size=20),
    "v7 with DeepEmbed": deep_embedded(tiny_shape(layers=1)),
    "v6": tiny_v6(layers=1),
    "v4": tiny_v4(layers=1),
    "v6 in a Qwen2": tiny_v6_qwen2(layers=1),
    "v7 in a Qwen2": tiny_v7_qwen2(width=40, head_size=20),
    "v7 in a Qwen2, without a gate": tiny_v7_qwen2(gate_rank=0),
}
TOKENS = [3, 1, 7, 7, 2, 5, 11, 4, 0, 9]
PARTS = (TOKENS[:3], *([token] for token in TOKENS[3:6]), TOKENS[6:8], *([token] for token in TOKENS[8:]))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_steps_of_one_token_continue_those_of_several(shape: ModelShape) -> None:
    model = random_model(shape, seed=2)
    logits, state = forward(model, TOKENS, dtype=np.float64)
    runner, _ = load_with_matmuls(model, weights="f32", normed=NORMED)
    with closing(runner):
        assert len(runner.plan(1, 1, 0).dispatches) < len(runner.plan(2, 1, 0).dispatches)
        run_step(runner, [TokenRun(0, TOKENS[5:], rows=0)])
        neighbour = runner.read_state(0)
        rows = [run_step(runner, [TokenRun(1, part, rows=1)]).full_row(0).copy() for part in PARTS]
        ends = np.cumsum([len(part) for part in PARTS]) - 1
        np.testing.assert_allclose(rows, logits[ends], atol=1e-4 * np.abs(logits).max())
        for name, values in runner.read_state(1).items():
            np.testing.assert_allclose(values, state[name], atol=1e-4 * np.abs(state[name]).max())
        for name, values in runner.read_state(0).items():
            assert np.array_equal(values, neighbour[name])


@pytest.mark.parametrize(
    ("shape", "weights", "count"),
    [
        (tiny_shape(layers=1), "int4,first=int4", 5),
        (tiny_shape(layers=1), "int8,adapters=int8", 6),  # the recurrence reads adapters in formats of one buffer
        (tiny_v6(layers=1), "int8", 7),
        (tiny_v6_qwen2(layers=1), "int4,first=int4", 7),
        (tiny_v6_qwen2(layers=1), "int4,first=int4,adapters=f32", 7),
        (tiny_v7_qwen2(layers=1), "int4,first=int4", 5),
    ],
)
def test_quantised_matrices_take_as_few_dispatches(shape: ModelShape, weights: str, count: int) -> None:
    model = random_model(shape, seed=2)
    logits, state = forward(rounded(model, WeightChoice.parse(weights)), TOKENS[:3], dtype=np.float64)
    runner, _ = load_with_matmuls(model, weights=weights, normed=NORMED)
    with closing(runner):
        assert str(runner.plan(1, 1, 0)).count("layer 0 ") == count
        for token, expected in zip(TOKENS, logits, strict=False):
            found = run_step(runner, [TokenRun(1, [token], rows=1)]).full_row(0)
            np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
        for name, values in runner.read_state(1).items():
            np.testing.assert_allclose(values, state[name], atol=2e-5 * np.abs(state[name]).max())


def test_a_device_that_binds_few_buffers_takes_more_dispatches() -> None:
    smallest = SizingDevice.smallest()
    for most, count in ((8, 2), (9, 1)):
        limits = {**smallest.wgpu_device.limits, "max-storage-buffers-per-shader-stage": most}
        runner, _ = load_with_matmuls(
            random_model(tiny_shape(layers=1), seed=2),
            weights="int8",
            normed=NORMED,
            device=SizingDevice(smallest.info, limits),
        )
        assert str(runner.plan(1, 1, 0)).count("layer 0 projections") == count


def test_inputs_that_become_bytes_are_normed_before() -> None:
    model = random_model(tiny_v4(), seed=2)
    runner, _ = load_with_matmuls(model, weights="int8,activations=int8", normed=NORMED)
    with closing(runner):
        assert str(runner.plan(1, 1, 1)).count("norm_shift") == 4


def test_a_width_beyond_a_workgroups_memory_is_normed_before() -> None:
    device = SizingDevice.smallest()
    limits = StepLimits(num_slots=1, max_tokens=1, max_rows=1, num_candidates=1)
    matmuls = MatMulKernels(device.kernels, tuning_for(device.info, can_broadcast=True), limits)
    assert matmuls.can_norm(2560)
    assert not matmuls.can_norm(4096)
