"""Choosing a device, its memory, and what it says when it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from rnn_engine.errors import DeviceError, DeviceMemoryError
from rnn_engine.gpu import BufferCopy, Device, Dispatch, Kernels, Plan, Recorder, list_devices, measure_subgroup_size


@pytest.fixture(params=[True, False], ids=["checked", "unchecked"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = Device.open(checked=request.param)
    yield device
    device.close()


def test_a_device_is_found_by_index_name_part_or_by_itself() -> None:
    devices = list_devices()
    assert [info.index for info in devices] == list(range(len(devices)))
    for info in devices:
        for choice in (str(info.index), info.name[1:5].upper()):
            device = Device.open(choice)
            assert device.info.backend in ("Vulkan", "Metal", "D3D12")
            device.close()
    Device.open("auto").close()


@pytest.mark.parametrize("choice", ["99", "no such device", ""])
def test_an_unknown_device_is_an_error_that_lists_those_there_are(choice: str) -> None:
    if choice:
        with pytest.raises(DeviceError, match=f"no device '{choice}'; there are: 0 = .*'cpu'"):
            Device.open(choice)
    else:
        Device.open(choice).close()  # a part of every name


def test_bytes_are_counted_and_freed(device: Device) -> None:
    device.create_buffer("a", 100)
    device.create_buffer("b", 16, mappable=True)
    assert device.allocated_bytes == 112 + 16
    device.close()
    device.close()
    assert device.allocated_bytes == 0


def test_bytes_come_back_as_they_were_written(device: Device) -> None:
    data = np.arange(9_000_000, dtype=np.uint32)  # more than one piece
    buffer = device.create_buffer("data", data.nbytes + 8)
    device.upload(buffer, 8, data)
    assert device.read(buffer, 0, 8) == bytes(8)
    assert device.read(buffer, 8, data.nbytes) == data.tobytes()


def test_a_buffer_beyond_the_limit_is_an_error_that_says_both_sizes(device: Device) -> None:
    size = device.max_binding_bytes + 1
    with pytest.raises(DeviceMemoryError, match=f"weights: {size} bytes asked for.*{device.max_binding_bytes}"):
        device.create_buffer("weights", size)


def test_a_kernel_is_compiled_once_for_the_same_constants(device: Device) -> None:
    kernels = Kernels(device)
    first = kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16})
    assert kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16}) is first
    assert kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 24}) is not first
    assert len(kernels) == 2


def test_a_shader_that_is_refused_names_its_file_and_line(device: Device) -> None:
    with pytest.raises(DeviceError, match=r"refuses copy_state\.wgsl:13: "):
        Kernels(device).get("copy_state", {"THREADS": 0.5, "STATE_STRIDE": 16})


def test_bindings_are_by_name(device: Device) -> None:
    kernels = Kernels(device)
    kernel = kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16})
    with pytest.raises(KeyError, match=r"copy_state.wgsl binds \['pair', 'state'\], not \['states'\]"):
        kernels.bind(kernel.source, {"states": device.create_buffer("states", 64)})


def test_a_plan_runs_in_order_and_then_its_copies(device: Device) -> None:
    kernels, recorder = Kernels(device), Recorder(device)
    kernel = kernels.get("copy_state", {"THREADS": 8, "STATE_STRIDE": 16})
    state = device.create_buffer("state", 4 * 3 * 16)
    device.upload(state, 0, np.arange(48, dtype=np.float32))
    dispatches = []
    for source, target in ((0, 1), (1, 2)):
        pair = device.create_buffer("pair", 8)
        device.upload(pair, 0, np.array([source, target], np.uint32))
        bind_group = kernels.bind(kernel.source, {"pair": pair, "state": state})
        dispatches.append(Dispatch(f"{source} to {target}", kernel, bind_group, 2))
    plan = Plan(tuple(dispatches))
    assert str(plan) == "0 to 1: copy_state 2 x 1\n1 to 2: copy_state 2 x 1"
    answer = device.create_buffer("answer", 64, mappable=True)
    for _ in range(2):  # a plan and a mapped buffer may be used again
        submission = recorder.submit(plan, [BufferCopy(state, 4 * 32, answer, 0, 64)])
        data = recorder.download(answer, 64, submission).take()
        assert np.frombuffer(data, np.float32).tolist() == list(range(16))


def test_subgroups_are_measured(device: Device) -> None:
    size = measure_subgroup_size(device, Kernels(device))
    assert size in ((4, 8, 16, 32, 64, 128) if device.has_subgroups else (0,))
