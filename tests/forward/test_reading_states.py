"""Reads of states in flight on a GPU: their memory is bounded, and closing the runner ends them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from wgpu import GPUCommandBuffer, GPUDevice

from rnn_engine.errors import DeviceError, DeviceMemoryError, StepError
from rnn_engine.forward import GpuRunner, slot_states
from rnn_engine.forward.slot_states import StateLayout
from rnn_engine.gpu import Buffer, Memory, native
from rnn_engine.types import TokenRun, run_step
from tests.support.gpu import make_gpu_runner
from tests.support.models import random_model, tiny_shape
from tests.support.results_contract import random_state

MODEL = random_model(tiny_shape(layers=2), seed=3)


@pytest.fixture(params=[None, 4 * StateLayout(MODEL.shape).stride], ids=["one buffer", "a buffer for each layer"])
def runner(request: pytest.FixtureRequest) -> Iterator[GpuRunner]:
    runner = make_gpu_runner(
        MODEL, num_slots=3, max_tokens=8, max_rows=4, num_candidates=8, max_buffer_bytes=request.param
    )
    yield runner
    runner.close()


def test_states_are_read_whole(runner: GpuRunner) -> None:
    state = random_state(MODEL.shape)
    runner.write_state(1, state)
    for name, values in runner.read_state(1).items():
        assert np.array_equal(values, state[name])


def test_at_most_four_reads_hold_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_states, "_READ_BYTES", 0)
    runner = make_gpu_runner(MODEL, num_slots=3, max_tokens=8, max_rows=4, num_candidates=8)
    before = runner.memory.total
    reads = [runner.start_read(0) for _ in range(4)]
    grown = runner.memory.total
    assert grown > before
    reads += [runner.start_read(0) for _ in range(10)]
    assert runner.memory.total == grown
    assert all(not read.result()["wkv"].any() for read in reads)
    runner.close()


def test_what_is_done_together_takes_two_submissions(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted, submit = [], native.submit

    def count(device: GPUDevice, *commands: GPUCommandBuffer) -> int:
        submitted.append(commands)
        return submit(device, *commands)

    state = random_state(MODEL.shape)
    runner.write_state(0, state)
    monkeypatch.setattr(native, "submit", count)
    with runner.together():
        runner.copy_state(0, 1)
        reads = [runner.start_read(slot) for slot in (0, 1)]
        runner.write_state(2, None)
        assert not any(read.done() for read in reads)
        assert not submitted
    assert len(submitted) == 2
    for read in reads:
        assert all(np.array_equal(values, state[name]) for name, values in read.result().items())
    assert not runner.read_state(2)["wkv"].any()


def test_copies_are_made_before_the_next_step_if_they_failed(
    runner: GpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise DeviceError("told to fail")

    runner.write_state(0, random_state(MODEL.shape))
    with monkeypatch.context() as patch:
        patch.setattr(native, "submit", fail)
        with runner.together():
            runner.copy_state(0, 1)
            read = runner.start_read(0)
        with pytest.raises(DeviceError, match="told to fail"):
            read.result()
        with pytest.raises(StepError, match="told to fail"):
            runner.submit([TokenRun(0, [1])])
    run_step(runner, [TokenRun(0, [1]), TokenRun(1, [1])])
    for one, other in zip(runner.read_state(0).values(), runner.read_state(1).values(), strict=True):
        assert np.array_equal(one, other)
    assert runner.read_state(1)["wkv"].any()


def test_a_read_that_does_not_begin_holds_no_memory(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise DeviceError("told to fail")

    before = runner.memory.total
    with monkeypatch.context() as patch, runner.together():
        patch.setattr(native, "submit", fail)
        runner.write_state(0, None)
        for _ in range(10):
            with pytest.raises(DeviceError, match="told to fail"):
                runner.start_read(0)
    assert runner.memory.total == before
    assert not runner.read_state(0)["wkv"].any()


def test_rows_that_are_likely_to_be_read_are_read_at_once(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [TokenRun(slot, [slot + 1, 5], rows=1 + (slot == 1), reads_row=slot != 0) for slot in range(3)]
    readout = run_step(runner, batch)
    reads, read = [], Memory.read

    def listen(memory: Memory, buffer: Buffer, *numbers: int) -> bytes:
        reads.append(numbers)
        return read(memory, buffer, *numbers)

    monkeypatch.setattr(Memory, "read", listen)
    rows = [readout.full_row(row) for row in (2, 3, 2, 0, 1)]
    assert len(reads) == 3
    for number, row in zip((2, 3, 2, 0, 1), rows, strict=True):
        assert row.max() == readout.logits[number, 0]


def test_a_device_without_room_reads_one_after_the_other(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(memory: Memory, label: str, num_bytes: int, *, mappable: bool = False) -> Buffer:
        raise DeviceMemoryError("told to refuse")

    monkeypatch.setattr(Memory, "create_buffer", refuse)
    reads = [runner.start_read(slot) for slot in range(3)]
    assert [read.done() for read in reads[:2]] == [True, True]
    assert all(not read.result()["wkv"].any() for read in reads)


def test_reads_do_not_wait(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the device is waited for")

    with monkeypatch.context() as patch:
        patch.setattr(native, "wait", refuse)
        reads = [runner.start_read(slot) for slot in range(3)]
        while not all(read.done() for read in reads):
            pass
        assert all(not read.result()["wkv"].any() for read in reads)


def test_a_read_that_fails_says_so_and_hurts_no_other(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError("told to fail")

    failing = runner.start_read(0)
    with monkeypatch.context() as patch:
        patch.setattr(native, "copy_mapped", fail)
        with pytest.raises(DeviceError, match="told to fail"):
            failing.result()
    with monkeypatch.context() as patch:
        patch.setattr(native, "Mapping", fail)
        with pytest.raises(DeviceError, match="told to fail"):
            runner.start_read(0)
    assert failing.done()
    reads = [runner.start_read(0) for _ in range(6)]
    assert all(not read.result()["wkv"].any() for read in reads)


def test_closing_ends_the_reads_under_way(runner: GpuRunner) -> None:
    early, late = runner.start_read(0), runner.start_read(1)
    early.result()
    runner.close()
    assert not early.result()["wkv"].any()
    assert late.done()
    with pytest.raises(DeviceError, match="not read before the runner was closed"):
        late.result()
