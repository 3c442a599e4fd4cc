"""How long a device takes for each dispatch of a plan, by its own clock."""

from __future__ import annotations

import struct
import time
from statistics import median

from rnn_engine.errors import DeviceError
from rnn_engine.gpu import native
from rnn_engine.gpu.device import Device
from rnn_engine.gpu.device_errors import device_errors
from rnn_engine.gpu.recorder import Plan, Recorder

_MAX_DISPATCHES = 2048  # WebGPU promises query sets of 4096 times


def time_dispatches(device: Device, plan: Plan, repeats: int) -> list[float]:
    """Run `plan` once to warm up and `repeats` times more; return the median seconds of each of its dispatches.

    Each dispatch is a compute pass of its own here, so what the device overlaps within a step is not seen. Blocks.
    Raises DeviceError where the device has no clock, or fails.
    """
    if not device.has_timestamps:
        raise DeviceError(f"{device.info.name} can't tell how long a dispatch takes: it has no timestamp queries")
    if len(plan.dispatches) > _MAX_DISPATCHES:
        raise DeviceError(f"{len(plan.dispatches)} dispatches can't be timed at once, only {_MAX_DISPATCHES}")
    with device_errors("dispatches can't be timed"):
        runs = [_time_once(device, plan) for _ in range(1 + repeats)][1:]
    return [median(seconds) for seconds in zip(*runs, strict=True)]


def time_plan(device: Device, plan: Plan, repeats: int) -> list[float]:
    """Run `plan` `repeats` times; return for each the seconds that its dispatches took, one after the other. Blocks.

    By the device's own clock where it has one. Of a software device it is the time of all processors together, which
    other work on the machine changes little; of a device without a clock it is the time until the host hears of the
    end. Raises DeviceError where the device fails.
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
    ticks = struct.unpack(f"<{count}Q", wgpu_device.queue.read_buffer(resolved))
    seconds = 1e-9 * native.timestamp_period(wgpu_device)
    return [seconds * max(0, end - begun) for begun, end in zip(ticks[::2], ticks[1::2], strict=True)]
