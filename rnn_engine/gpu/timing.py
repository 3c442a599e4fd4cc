"""Measurements of a device: the times of dispatches and plans, its peak speeds, and its subgroup size."""

from __future__ import annotations

import struct
import time
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Final

from rnn_engine.errors import DeviceError
from rnn_engine.gpu import native
from rnn_engine.gpu.device import Device
from rnn_engine.gpu.memory import device_errors, read_buffer
from rnn_engine.gpu.recorder import BufferCopy, Dispatch, Plan, Recorder

_MAX_DISPATCHES = 2048  # WebGPU promises query sets of 4096 times


def time_dispatches(device: Device, plan: Plan, repeats: int) -> list[float]:
    """Run `plan` `repeats` times after a warm-up, and return the median seconds of each of its dispatches.

    Each dispatch is a compute pass of its own here, so the times do not show dispatches that overlap within a step.
    Blocks. Raises DeviceError if the device has no clock, or fails.
    """
    if not device.has_timestamps:
        raise DeviceError(f"{device.info.name} can't time dispatches, since it has no timestamp queries")
    if len(plan.dispatches) > _MAX_DISPATCHES:
        raise DeviceError(
            f"{len(plan.dispatches)} dispatches can't be timed at once; expected at most {_MAX_DISPATCHES}"
        )
    with device_errors("dispatches can't be timed"):
        runs = [_time_once(device, plan) for _ in range(1 + repeats)][1:]
    return [median(seconds) for seconds in zip(*runs, strict=True)]


def time_plan(device: Device, plan: Plan, repeats: int) -> list[float]:
    """Run `plan` `repeats` times, and return for each run the seconds that all its dispatches took together.

    Blocks. The times are by the device's own clock if it has one and the plan has at most 2048 dispatches.
    For a software device they are the time of all processors together, since other work on the machine changes that
    little. Otherwise they last until the host learns of the end.
    Raises DeviceError if the device fails.
    """
    with device_errors("a plan can't be timed"):
        if device.has_timestamps and not device.info.is_software and len(plan.dispatches) <= _MAX_DISPATCHES:
            return [sum(_time_once(device, plan)) for _ in range(repeats)]
        recorder = Recorder(device)
        clock = time.process_time if device.info.is_software else time.perf_counter
        seconds = []
        for _ in range(repeats):
            begun = clock()
            recorder.wait(recorder.submit(plan))
            seconds.append(clock() - begun)
        return seconds


def _time_once(device: Device, plan: Plan) -> list[float]:
    wgpu_device, count = device.wgpu_device, 2 * len(plan.dispatches)
    queries = wgpu_device.create_query_set(type="timestamp", count=count)
    resolved = wgpu_device.create_buffer(size=8 * count, usage="QUERY_RESOLVE|COPY_SRC")
    encoder = wgpu_device.create_command_encoder()
    for number, dispatch in enumerate(plan.raw):
        compute_pass = encoder.begin_compute_pass(
            timestamp_writes={
                "query_set": queries,
                "beginning_of_pass_write_index": 2 * number,
                "end_of_pass_write_index": 2 * number + 1,
            }
        )
        native.record(compute_pass, [dispatch])
        compute_pass.end()
    encoder.resolve_query_set(queries, 0, count, resolved, 0)
    native.submit(wgpu_device, encoder.finish())
    ticks = struct.unpack(f"<{count}Q", read_buffer(wgpu_device, resolved, [0], 8 * count))
    seconds = 1e-9 * native.timestamp_period(wgpu_device)
    return [seconds * max(0, end - begun) for begun, end in zip(ticks[::2], ticks[1::2], strict=True)]


# The peak speeds of a device, measured with work of one kind alone: a copy, or products and sums.

_COPIED_BYTES: Final = 256 << 20  # at most; more than the caches of most devices hold
_COPIES: Final = 4  # in a submission
_THREADS: Final = 64
_ROUNDS: Final = 256  # of a thread in peak.wgsl
_OPERATIONS: Final = 4 * 4 * 2  # in a round: four vectors of four numbers, with a product and a sum each
_REPEATS: Final = 5


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """The measured peak speeds of a device: its copy bandwidth, and its operations per second in f32 and f16."""

    copy: float  # bytes a second, read and written
    f32: float  # operations a second; a product and a sum are two
    f16: float | None  # operations a second; None if the device has no f16


def measure_peaks(device: Device) -> DevicePeaks:
    """Measure the peak speeds of `device`, which takes about a second. Raises DeviceError if it has no clock."""
    return DevicePeaks(
        copy=measure_copy(device),
        f32=_measure_operations(device, "f32"),
        f16=_measure_operations(device, "f16") if device.has_f16 else None,
    )


def measure_copy(device: Device) -> float:
    """Measure and return the copy bandwidth of `device` in bytes per second, counting bytes read and bytes written."""
    num_bytes = min(_COPIED_BYTES, device.max_binding_bytes // 2)
    recorder = Recorder(device)
    with closing(device.allocate()) as memory:
        source, target = (memory.create_buffer(label, num_bytes) for label in ("copied from", "copied to"))
        copies = [BufferCopy(source, 0, target, 0, num_bytes)] * _COPIES

        def copy() -> float:
            begun = time.perf_counter()
            recorder.wait(recorder.submit(copies=copies))
            return time.perf_counter() - begun

        copy()
        return 2 * _COPIES * num_bytes / median(copy() for _ in range(_REPEATS))


def _measure_operations(device: Device, number: str) -> float:
    kernel = device.kernels.get("peak", {"THREADS": _THREADS, "ROUNDS": _ROUNDS}, {"NUMBER": f"number_{number}"})
    groups = 256 if device.info.is_software else 16_384
    with closing(device.allocate()) as memory:
        sums = memory.create_buffer("sums", 4 * groups * _THREADS)
        bind_group = device.kernels.bind(kernel.source, {"sums": sums})
        (seconds,) = time_dispatches(device, Plan((Dispatch("peak", kernel, bind_group, groups),)), _REPEATS)
    return groups * _THREADS * _ROUNDS * _OPERATIONS / max(seconds, 1e-9)


# The actual size of a device's subgroups, since an adapter reports only a range.


def measure_subgroup_size(device: Device) -> int:
    """Measure the lanes of a subgroup; 0 without subgroups, or if lanes are not numbered as threads are."""
    if not device.has_subgroups:
        return 0
    kernel = device.kernels.get("subgroup_size", {"THREADS": 64})
    with closing(device.allocate()) as memory:
        buffer = memory.create_buffer("subgroup size", 4)
        bind_group = device.kernels.bind(kernel.source, {"size": buffer})
        Recorder(device).submit(Plan((Dispatch("subgroup size", kernel, bind_group, 1),)))
        (size,) = struct.unpack("<I", memory.read(buffer, 0, 4))
    return int(size)
