"""Models on one device: they share it, hold memory of their own, and free all of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rnn_engine.errors import DeviceError, DeviceMemoryError
from rnn_engine.forward import GpuRunner
from rnn_engine.gpu import Buffer, Device, Memory, open_device
from rnn_engine.loading import kernel_choices
from rnn_engine.loading import runner as loading
from rnn_engine.types import F32, BufferUse, Runner, TokenRun, run_step
from tests.support.models import TensorModel, random_model, tiny_shape

MODELS = [random_model(tiny_shape(layers=2), seed=seed) for seed in (1, 2)]


def load(model: TensorModel = MODELS[0], spare_bytes: int = 0) -> GpuRunner:
    runner = loading.load_runner(model, size=loading.RunnerSize(2, max_tokens=8, spare_bytes=spare_bytes), warm_up=True)
    assert isinstance(runner, GpuRunner)
    return runner


def steps(runner: Runner) -> list[F32]:
    runner.write_state(0, None)
    return [run_step(runner, [TokenRun(0, [token, 3], rows=1)]).logits for token in range(5)]


@pytest.fixture
def device() -> Iterator[Device]:
    device = open_device()
    before = device.allocated_bytes
    yield device
    assert device.allocated_bytes == before


def test_two_models_run_on_one_device_and_closing_one_leaves_the_other(device: Device) -> None:
    expected = []
    for model in MODELS:
        runner = load(model)
        expected.append(steps(runner))
        runner.close()
    one, other = map(load, MODELS)
    assert one.device is other.device is device
    assert np.array_equal([steps(one), steps(other)], expected)
    ticket = other.submit([TokenRun(1, [1], rows=1)])
    one.close()
    other.collect(ticket)
    assert np.array_equal(steps(other), expected[1])
    other.close()


def test_models_are_loaded_run_and_closed_in_threads_of_their_own(device: Device) -> None:
    def use(model: TensorModel) -> list[list[F32]]:
        found = []
        for _ in range(3):
            runner = load(model)
            found.append(steps(runner))
            runner.close()
        return found

    expected = [use(model) for model in MODELS]
    with ThreadPoolExecutor(2) as threads:
        assert np.array_equal(list(threads.map(use, MODELS)), expected)
    assert open_device() is device


def test_loading_and_closing_leaves_no_bytes_behind(device: Device) -> None:
    before = device.allocated_bytes
    for _ in range(20):
        runner = load()
        assert device.allocated_bytes == before + runner.memory.total
        runner.close()
        assert device.allocated_bytes == before


def fail(*_: object, **__: object) -> int:
    raise DeviceError("told to fail")


@pytest.mark.parametrize(
    ("owner", "name"), [(kernel_choices, "measure_subgroup_size"), (GpuRunner, "warm_up"), (loading, "GpuRunner")]
)
@pytest.mark.usefixtures("device")
def test_nothing_is_held_where_loading_fails(owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(DeviceError, match="told to fail"):
        load()


def test_nothing_is_held_where_the_memory_is_too_little(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    create = Memory.create_buffer
    created: list[str] = []

    def run_out(
        memory: Memory, label: str, num_bytes: int, *, use: BufferUse = "buffers", mappable: bool = False
    ) -> Buffer:
        if len(created) == limit:
            raise DeviceMemoryError(f"{label}: no room")
        created.append(label)
        return create(memory, label, num_bytes, use=use, mappable=mappable)

    before = device.allocated_bytes
    monkeypatch.setattr(Memory, "create_buffer", run_out)
    limit = -1
    load().close()
    for limit in range(0, len(created), 3):
        created.clear()
        with pytest.raises(DeviceMemoryError, match="no room"):
            load(spare_bytes=1 << 20 if limit == 30 else 0)
        assert device.allocated_bytes == before
