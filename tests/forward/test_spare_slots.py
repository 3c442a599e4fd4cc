"""Spare slots beyond the requested ones: as many as a budget and the device have room for."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from rnn_engine.errors import DeviceMemoryError
from rnn_engine.forward.slot_states import StateLayout
from rnn_engine.gpu import Buffer, Memory, open_device
from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.types import TokenRun, run_step
from tests.support.models import random_model, tiny_shape

SHAPE = tiny_shape(layers=2)
MODEL = random_model(SHAPE, seed=1)
SLOT_BYTES = {
    "auto": SHAPE.num_layers * 4 * StateLayout(SHAPE).stride,
    "cpu": sum(values.nbytes for values in SHAPE.initial_state().values()),
}


def count_slots(device: str, spare_bytes: int, num_slots: int = 2) -> int:
    runner = load_runner(MODEL, device, RunnerSize(num_slots, spare_bytes=spare_bytes))
    runner.close()
    return runner.num_slots


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_spare_slots_fill_their_bytes(device: str) -> None:
    size = SLOT_BYTES[device]
    assert [count_slots(device, num_bytes) for num_bytes in (0, size - 1, size, 5 * size + 1)] == [2, 2, 3, 7]


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_there_are_at_most_64(device: str) -> None:
    assert count_slots(device, 1 << 40) == 2 + 64


def test_a_step_takes_no_more_for_them() -> None:
    plain, spare = (load_runner(MODEL, size=RunnerSize(3, spare_bytes=num_bytes)) for num_bytes in (0, 1 << 30))
    assert (plain.max_rows, plain.max_tokens) == (spare.max_rows, spare.max_tokens)
    plain.close()
    spare.close()


def test_a_state_goes_to_a_spare_slot_and_back() -> None:
    runner = load_runner(MODEL, size=RunnerSize(1, spare_bytes=1 << 30))
    run_step(runner, [TokenRun(0, [1, 2, 3])])  # an odd number of steps: the other side of the shifts is in use
    before = runner.read_state(0)
    runner.copy_state(0, 64)
    runner.write_state(0, None)
    runner.copy_state(64, 0)
    for name, values in runner.read_state(0).items():
        np.testing.assert_array_equal(values, before[name])
    runner.close()


def test_a_binding_is_not_outgrown_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    layer_bytes = 4 * StateLayout(SHAPE).stride
    most = open_device().max_binding_bytes // layer_bytes
    monkeypatch.setattr("rnn_engine.loading.runner._MAX_SPARE_SLOTS", most)
    runner = load_runner(
        random_model(SHAPE, seed=1), size=RunnerSize(most - 3, max_rows=1, max_tokens=1, spare_bytes=1 << 50)
    )
    assert runner.num_slots == most
    runner.close()


def test_a_device_without_the_memory_does_without_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = Memory.create_buffer

    def create_small(memory: Memory, label: str, num_bytes: int, **how: Any) -> Buffer:  # noqa: ANN401
        if label.startswith("states of") and num_bytes > 2 * SLOT_BYTES["auto"]:
            raise DeviceMemoryError(f"{label}: no room")
        return create(memory, label, num_bytes, **how)

    monkeypatch.setattr(Memory, "create_buffer", create_small)
    with caplog.at_level(logging.WARNING):
        assert count_slots("auto", 1 << 30) == 2
    assert "loading again without spare slots: states of layer 0: no room" in caplog.text
    with pytest.raises(DeviceMemoryError):
        count_slots("auto", 0, num_slots=10)
