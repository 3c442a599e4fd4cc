"""The runner without a GPU: the contract of all runners, and its own features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rnn_engine.errors import StepError
from rnn_engine.loading.runner import load_runner, open_model
from rnn_engine.types import TokenRun, run_step
from tests.support.cpu import make_cpu_runner
from tests.support.gguf import save_gguf
from tests.support.golden_contract import GoldenContract
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.results_contract import MakeRunner
from tests.support.runner_contract import RunnerContract


@pytest.fixture(scope="module")
def make_runner() -> MakeRunner:
    return make_cpu_runner


class TestCpuRunner(RunnerContract):
    pass


class TestCpuRunnerGolden(GoldenContract):
    pass


def test_a_closed_runner_takes_no_step() -> None:
    runner = load_runner(random_model(tiny_shape(layers=1), seed=1), "cpu")
    runner.close()
    with pytest.raises(StepError, match="closed"):
        run_step(runner, [TokenRun(0, [1])])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_matrices_in_blocks_are_multiplied_as_their_numbers(kind: str, tmp_path: Path) -> None:
    with open_model(save_gguf(random_model(tiny_shape(), seed=1), tmp_path / "model.gguf", kind)) as opened:
        numbers = TensorModel(opened.shape, {name: opened.tensor(name) for name in opened.names})
        found, expected = (
            run_step(load_runner(model, "cpu"), [TokenRun(0, [1, 2, 3], rows=1)]).full_row(0)
            for model in (opened, numbers)
        )
    assert np.array_equal(found, expected)


def test_a_run_whose_rows_are_not_finite_is_not_sound() -> None:
    model = random_model(tiny_shape(layers=1), seed=1)
    head = model.tensor("head.weight").copy()
    head[3, 0] = np.nan
    runner = load_runner(TensorModel(model.shape, {**model.tensors, "head.weight": head}), "cpu")
    assert run_step(runner, [TokenRun(0, [1], rows=1), TokenRun(1, [1])]).sound.tolist() == [False, True]
