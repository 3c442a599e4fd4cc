"""The times of a plan by the device's own clock, and the measured speed of the device."""

from __future__ import annotations

import pytest

from rnn_engine.errors import DeviceError
from rnn_engine.gpu import Device, Plan, measure_peaks, open_device, time_dispatches
from rnn_engine.types import TokenRun, run_step
from tests.support.gpu import make_gpu_runner
from tests.support.models import random_model, tiny_shape


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(checked=True)


def test_every_dispatch_of_a_step_is_timed_and_counted(device: Device) -> None:
    runner = make_gpu_runner(random_model(tiny_shape(), 1), num_slots=2, max_tokens=8, max_rows=2, num_candidates=8)
    try:
        run_step(runner, [TokenRun(0, [1], rows=1)])
        plan = runner.plan(1, 1, 1)
        seconds = time_dispatches(device, plan, repeats=2)
    finally:
        runner.close()
    assert len(seconds) == len(plan.dispatches)
    assert all(0 <= time_taken < 10 for time_taken in seconds)
    assert sum(seconds) > 0
    products = [dispatch for dispatch in plan.dispatches if dispatch.operations]
    assert sum(dispatch.moved_bytes for dispatch in products) == runner.weight_bytes
    head = products[-1]
    assert head.operations == 2 * runner.shape.width * runner.shape.vocab_size


def test_a_recurrence_reads_and_writes_the_state_of_each_run() -> None:
    runner = make_gpu_runner(random_model(tiny_shape(), 1), num_slots=3, max_tokens=8, max_rows=2, num_candidates=8)
    try:
        (wkv,) = {d.moved_bytes for d in runner.plan(6, 3, 0).dispatches if d.kernel.label == "wkv7"}
    finally:
        runner.close()
    (matrix,) = (field for field in runner.shape.state_fields if field.name == "wkv")
    heads, rows, columns = matrix.shape
    assert wkv == 2 * 3 * 4 * heads * rows * columns


def test_a_device_without_a_clock_says_so(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_timestamps", False)
    with pytest.raises(DeviceError, match="no timestamp queries"):
        time_dispatches(device, Plan(()), repeats=1)


def test_the_limits_of_a_device_are_measured(device: Device) -> None:
    peaks = measure_peaks(device)
    assert peaks.copy > 1e6
    assert peaks.f32 > 1e6
    assert (peaks.f16 is not None) == device.has_f16
