"""The choice of a device, its memory, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from wgpu import GPUDevice

from rnn_engine.errors import DeviceError, DeviceMemoryError
from rnn_engine.gpu import (
    BufferCopy,
    Device,
    Dispatch,
    Kernels,
    Memory,
    Plan,
    Recorder,
    SizingDevice,
    list_devices,
    measure_subgroup_size,
    native,
    open_device,
)


@pytest.fixture(params=[True, False], ids=["checked", "unchecked"])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(checked=request.param)


@pytest.fixture
def memory(device: Device) -> Iterator[Memory]:
    with closing(device.allocate()) as memory:
        yield memory


def test_a_device_is_found_by_index_name_part_or_by_itself() -> None:
    devices = list_devices()
    assert [info.index for info in devices] == list(range(len(devices)))
    for info in devices:
        for choice in (str(info.index), info.name[1:5].upper()):
            assert open_device(choice).info.backend in ("Vulkan", "Metal", "D3D12")
    assert open_device("auto").info in devices


def test_a_device_is_opened_once() -> None:
    with ThreadPoolExecutor(4) as threads:
        opened = set(threads.map(lambda _: open_device(), range(8)))
    assert len(opened) == 1
    assert open_device(checked=True) is open_device(checked=True)
    assert open_device(checked=True) is not open_device()


def test_a_device_that_was_lost_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.gpu.device._opened", {})
    devices = [open_device()]
    devices[0].wgpu_device.destroy()
    devices.append(open_device())
    assert [device.is_lost for device in devices] == [True, False]


@pytest.mark.parametrize("choice", ["99", "no such device", ""])
def test_an_unknown_device_is_an_error_that_lists_those_there_are(choice: str) -> None:
    if choice:
        with pytest.raises(DeviceError, match=f"no device '{choice}'; expected one of 0 = .*'cpu'"):
            open_device(choice)
    else:
        open_device(choice)  # a part of every name


def test_bytes_are_counted_and_freed_by_group(device: Device) -> None:
    before = device.allocated_bytes
    one, other = device.allocate(), device.allocate()
    one.create_buffer("a", 100)
    one.create_buffer("b", 16, mappable=True)
    kept = other.create_buffer("c", 32)
    assert (one.allocated_bytes, other.allocated_bytes) == (112 + 16, 32)
    assert device.allocated_bytes == before + 112 + 16 + 32
    one.close()
    one.close()
    assert (one.allocated_bytes, device.allocated_bytes) == (0, before + 32)
    assert other.read(kept, 0, 32) == bytes(32)
    other.close()
    assert device.allocated_bytes == before


def test_bytes_come_back_as_they_were_written(memory: Memory) -> None:
    data = np.arange(9_000_000, dtype=np.uint32)  # more than one piece
    buffer = memory.create_buffer("data", data.nbytes + 8)
    memory.upload(buffer, 8, data)
    assert memory.read(buffer, 0, 8) == bytes(8)
    assert memory.read(buffer, 8, data.nbytes) == data.tobytes()


def test_a_buffer_beyond_the_limit_is_an_error_that_says_both_sizes(memory: Memory) -> None:
    size = memory.max_binding_bytes + 1
    with pytest.raises(DeviceMemoryError, match=f"weights: {size} bytes are needed.*{memory.max_binding_bytes}"):
        memory.create_buffer("weights", size)


@pytest.mark.parametrize("limit", [1 << 27, (1 << 27) + 12, (1 << 32) - 1, 1 << 32, 14_302_248_960, 1 << 40])
def test_bindings_have_sizes_that_shaders_can_count(limit: int) -> None:
    smallest = SizingDevice.smallest()
    limits = {"max-buffer-size": limit, "max-storage-buffer-binding-size": limit}
    device = SizingDevice(smallest.info, {**smallest.wgpu_device.limits, **limits})
    assert min(limit, (1 << 32) - 1) - 16 < device.max_binding_bytes <= min(limit, (1 << 32) - 1)
    assert device.allocate().create_buffer("largest", device.max_binding_bytes).size <= limit


def make_kernels(device: Device, limit: int = 8) -> Kernels:
    return Kernels(device.wgpu_device, device.info.name, checked=True, limit=limit)


def test_a_kernel_is_compiled_once_for_the_same_constants(device: Device) -> None:
    kernels = make_kernels(device)
    first = kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16})
    assert kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16}) is first
    assert kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 24}) is not first
    assert len(kernels) == 2


def test_the_kernels_that_were_asked_for_last_are_kept(device: Device) -> None:
    kernels = make_kernels(device, limit=2)
    first, second = (kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": stride}) for stride in (16, 24))
    assert kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16}) is first
    kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 32})
    assert len(kernels) == 2
    assert kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16}) is first
    assert kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 24}) is not second


def test_a_shader_that_is_refused_names_its_file_and_line(device: Device) -> None:
    with pytest.raises(DeviceError, match=r"can't compile copy_state\.wgsl:16: "):
        device.kernels.get("copy_state", {"THREADS": 0.5, "STATE_STRIDE": 16})


def test_bindings_are_by_name(device: Device, memory: Memory) -> None:
    kernel = device.kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16})
    with pytest.raises(KeyError, match=r"copy_state.wgsl binds \['initial', 'pairs', 'state'\], not \['states'\]"):
        device.kernels.bind(kernel.source, {"states": memory.create_buffer("states", 64)})


def test_a_plan_runs_in_order_and_then_its_copies(device: Device, memory: Memory) -> None:
    kernels, recorder = device.kernels, Recorder(device)
    kernel = kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16})
    state = memory.create_buffer("state", 4 * 3 * 16)
    memory.upload(state, 0, np.arange(48, dtype=np.float32))
    dispatches = []
    for source, target in ((0, 1), (1, 2)):
        pair = memory.create_buffer("pair", 8)
        memory.upload(pair, 0, np.array([source, target], np.uint32))
        initial = memory.create_buffer("initial", 64)
        bind_group = kernels.bind(kernel.source, {"pairs": pair, "initial": initial, "state": state})
        dispatches.append(Dispatch(f"{source} to {target}", kernel, bind_group, 2))
    plan = Plan(tuple(dispatches))
    assert str(plan) == "0 to 1: copy_state 2 x 1\n1 to 2: copy_state 2 x 1"
    answer = memory.create_buffer("answer", 64, mappable=True)
    for _ in range(2):  # a plan and a mapped buffer may be used again
        submission = recorder.submit(plan, [BufferCopy(state, 4 * 32, answer, 0, 64)])
        data = recorder.download(answer, 64, submission).take()
        assert np.frombuffer(data, np.float32).tolist() == list(range(16))


def test_subgroups_are_measured(device: Device) -> None:
    before = device.allocated_bytes
    size = measure_subgroup_size(device)
    assert device.allocated_bytes == before
    assert size in ((2, 4, 8, 16, 32, 64, 128) if device.has_subgroups else (0,))


def test_memory_of_a_lost_device_can_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.gpu.device._opened", {})
    device = open_device()
    memory = device.allocate()
    memory.create_buffer("some", 64)
    device.wgpu_device.destroy()
    assert device.is_lost
    memory.close()
    assert device.allocated_bytes == 0


def test_a_wait_that_ends_early_is_repeated(device: Device, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu bounds how long it waits for a submission."""
    waits: list[int] = []

    def wait(device: GPUDevice, submission: int) -> None:
        waits.append(submission)
        if len(waits) > 2:
            native_wait(device, submission)

    native_wait = native.wait
    monkeypatch.setattr(native, "wait", wait)
    memory.upload(source := memory.create_buffer("source", 64), 0, np.arange(16, dtype=np.float32))
    recorder, answer = Recorder(device), memory.create_buffer("answer", 64, mappable=True)
    submission = recorder.submit(copies=[BufferCopy(source, 0, answer, 0, 64)])
    data = recorder.download(answer, 64, submission).take()
    assert np.frombuffer(data, np.float32).tolist() == list(range(16))
    assert waits == [submission] * 3


def test_bytes_on_their_way_from_a_lost_device_can_not_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.gpu.device._opened", {})
    device = open_device()
    memory, recorder = device.allocate(), Recorder(device)
    source, answer = memory.create_buffer("source", 64), memory.create_buffer("answer", 64, mappable=True)
    submission = recorder.submit(copies=[BufferCopy(source, 0, answer, 0, 64)])
    download = recorder.download(answer, 64, submission)
    device.wgpu_device.destroy()
    with pytest.raises(DeviceError, match="answer can't be read: the device is lost"):
        download.take()
    memory.close()
