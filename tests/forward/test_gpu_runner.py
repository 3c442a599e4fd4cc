"""The runner on a GPU: the contract of all runners, the golden files, and its own features."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.errors import DeviceError, DeviceMemoryError, StepError
from rnn_engine.gpu import BufferCopy, Plan, Recorder
from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.types import TokenRun, run_step
from tests.support.golden_contract import GoldenContract
from tests.support.gpu import SHARING_KINDS, eight_lanes, make_gpu_runner
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.results_contract import MakeRunner
from tests.support.runner_contract import RunnerContract


@pytest.fixture(scope="module", params=SHARING_KINDS)
def make_runner(request: pytest.FixtureRequest) -> MakeRunner:
    return partial(make_gpu_runner, kind=request.param)


class TestGpuRunner(RunnerContract):
    tolerance = 2e-5


@eight_lanes
class TestGoldenInF32(GoldenContract):
    tolerance = 1e-4

    @pytest.fixture(scope="class")
    @classmethod
    def make_runner(cls) -> MakeRunner:
        return make_gpu_runner


class TestGoldenOnHardware(GoldenContract):
    """Golden models of each version, with its widest heads and sizes that are no multiples of the threads."""

    tolerance = 1e-4

    @pytest.fixture(scope="class")
    @classmethod
    def make_runner(cls) -> MakeRunner:
        return partial(make_gpu_runner, kind="discrete")

    @pytest.mark.parametrize(
        "name",
        [
            "v4-deep-odd-sizes",
            "v5.0-head32",
            "v5.1-head24",
            "v5.2-deep-head16-odd-sizes",
            "v6-deep-head32-odd-sizes",
            "v6-vocab256-head64",
            "v7-deep-head16-odd-sizes",
            "v7-deepembed-head16",
            "v7-single-head128",
            "v7-vocab500-head64",
        ],
    )
    def test_every_chunk_size_gives_the_golden_numbers(self, make_runner: MakeRunner, name: str) -> None:
        super().test_every_chunk_size_gives_the_golden_numbers(make_runner, name)


@eight_lanes
class TestGoldenInF16(GoldenContract):
    tolerance = 1e-4  # the golden weights are f16 themselves

    @pytest.fixture(scope="class")
    @classmethod
    def make_runner(cls) -> MakeRunner:
        return partial(make_gpu_runner, weights="f16")


def test_a_step_has_at_most_nine_dispatches_a_layer() -> None:
    runner = make_gpu_runner(
        random_model(tiny_shape(layers=3), seed=1), num_slots=2, max_tokens=8, max_rows=2, num_candidates=8
    )
    one = len(runner.plan(1, 1, 0).dispatches)
    assert one <= 9 * 3
    assert len(runner.plan(8, 2, 0).dispatches) == one
    assert "layer 2 recurrence: wkv7 4 x 2" in str(runner.plan(8, 2, 0))
    runner.close()


def test_loading_says_how_far_it_is() -> None:
    heard: list[tuple[int, int]] = []
    runner = load_runner(
        random_model(tiny_shape(layers=2), seed=1), progress=lambda what, done, total: heard.append((done, total))
    )
    assert heard == [(0, 3), (1, 3), (2, 3), (3, 3)]
    runner.close()


def test_a_warm_up_leaves_no_trace() -> None:
    runner = load_runner(random_model(tiny_shape(layers=1), seed=1), size=RunnerSize(2, max_tokens=8), warm_up=True)
    for values in (*runner.read_state(0).values(), *runner.read_state(1).values()):
        assert not values.any()
    runner.close()


def test_masks_are_made_when_the_device_has_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load_runner(random_model(tiny_shape(layers=1), seed=1))
    submitted: list[int] = []
    submit = Recorder.submit

    def note(recorder: Recorder, *arguments: Any) -> int:  # noqa: ANN401
        submitted.append(submit(recorder, *arguments))
        return submitted[-1]

    monkeypatch.setattr(Recorder, "submit", note)
    seen: list[int] = []
    run_step(runner, [TokenRun(0, [1], rows=1, masks=lambda: seen.append(len(submitted)))])
    assert (seen, len(submitted)) == ([1], 2)
    runner.close()


def test_a_closed_runner_takes_no_step() -> None:
    runner = load_runner(random_model(tiny_shape(layers=1), seed=1))
    runner.close()
    with pytest.raises(StepError, match="closed"):
        run_step(runner, [TokenRun(0, [1])])


def test_a_run_whose_rows_are_not_finite_is_not_sound_and_hurts_no_other() -> None:
    model = random_model(tiny_shape(layers=1), seed=1)
    embedding = model.tensor("emb.weight").copy()
    embedding[3] = np.nan
    runner = load_runner(TensorModel(model.shape, {**model.tensors, "emb.weight": embedding}))
    readout = run_step(runner, [TokenRun(0, [3], rows=1), TokenRun(1, [4], rows=1), TokenRun(2, [3])])
    assert readout.sound.tolist() == [False, True, True]
    alone = run_step(runner, [TokenRun(3, [4], rows=1)])
    assert np.array_equal(readout.logits[1], alone.logits[0])
    runner.close()


def test_too_many_slots_for_the_device_are_an_error_that_says_so() -> None:
    with pytest.raises(DeviceMemoryError, match=r"\d+ bytes are needed, but a buffer on this device has at most \d+"):
        load_runner(random_model(tiny_shape(layers=1), seed=1), size=RunnerSize(1_000_000, max_rows=1))


def test_a_head_size_that_no_kernel_takes_is_an_error_that_says_what_is() -> None:
    with pytest.raises(DeviceError, match="head size 264 is not supported on a GPU; expected at most 256"):
        load_runner(random_model(tiny_shape(layers=1, width=264, head_size=264), seed=1))


def test_a_width_that_no_kernel_takes_is_an_error_that_says_what_is() -> None:
    with pytest.raises(DeviceError, match="width 36 is not supported on a GPU; expected a multiple of 8"):
        load_runner(random_model(tiny_shape(layers=1, width=36, head_size=18), seed=1))


def test_a_warm_up_runs_each_kernel_of_a_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it takes no longer for a deeper model. Afterwards the runner is as good as a new one."""
    submitted: list[Plan] = []
    submit = Recorder.submit

    def listen(recorder: Recorder, plan: Plan | None = None, copies: Sequence[BufferCopy] = ()) -> int:
        submitted.append(plan or Plan(()))
        return submit(recorder, plan, copies)

    counts = {}
    for layers in (2, 5):
        model = random_model(tiny_shape(layers=layers), seed=1)
        runner = make_gpu_runner(model, num_slots=1, max_tokens=8, max_rows=2, num_candidates=8)
        expected = run_step(runner, [TokenRun(0, [1, 2, 3], rows=1)])
        usual = runner.plan(3, 1, 1, has_masks=True)
        with monkeypatch.context() as listening:
            listening.setattr(Recorder, "submit", listen)
            submitted.clear()
            runner.warm_up([1, 3], lambda *_: None)
        used = {id(dispatch.kernel) for plan in submitted for dispatch in plan.dispatches}
        assert {id(dispatch.kernel) for dispatch in usual.dispatches} <= used
        counts[layers] = sum(dispatch.label != "fork" for plan in submitted for dispatch in plan.dispatches)
        assert np.array_equal(run_step(runner, [TokenRun(0, [1, 2, 3], rows=1)]).logits, expected.logits)
        assert runner.plan(3, 1, 1, has_masks=True) == usual
        runner.close()
    assert counts[2] == counts[5]


def test_what_was_uploaded_does_not_stay_on_the_host() -> None:
    model = FreshModel(random_model(tiny_shape(), seed=1))
    runner = make_gpu_runner(model, num_slots=1, max_tokens=4, max_rows=1, num_candidates=8)
    gc.collect()
    assert {name for name, array in model.given_out if array() is not None} <= {"emb.weight"}
    runner.close()


class FreshModel:
    """A model that reads each tensor anew, as a file does, and lists the tensors that are still in use."""

    def __init__(self, model: TensorModel) -> None:
        self._model = model
        self.shape = model.shape
        self.names = model.names
        self.has = model.has
        self.block_type = model.block_type
        self.given_out: list[tuple[str, weakref.ref[NDArray[Any]]]] = []

    def tensor(self, name: str) -> NDArray[Any]:
        fresh = self._model.tensor(name).copy()
        self.given_out.append((name, weakref.ref(fresh)))
        return fresh

    def matrix(self, name: str, *, transposed: bool = False) -> NDArray[Any]:
        return self.tensor(name).T if transposed else self.tensor(name)
