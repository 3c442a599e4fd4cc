"""What a device reaches at best, measured with work that is one thing alone: a copy, or products and sums."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Final

from rnn_engine.gpu.device import Device
from rnn_engine.gpu.recorder import BufferCopy, Dispatch, Plan, Recorder
from rnn_engine.gpu.timing import time_dispatches

_COPIED_BYTES: Final = 256 << 20  # at most; more than the caches of most devices hold
_COPIES: Final = 4  # of a submission
_THREADS: Final = 64
_ROUNDS: Final = 256  # of a thread in peak.wgsl
_OPERATIONS: Final = 4 * 4 * 2  # of a round: four vectors of four numbers, a product and a sum each
_REPEATS: Final = 5


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """The limits that a kernel is held against."""

    copy: float  # bytes a second, read and written
    f32: float  # operations a second; a product and a sum are two
    f16: float | None  # None where the device has no such numbers


def measure_peaks(device: Device) -> DevicePeaks:
    """Measure what `device` reaches; takes a second or so. Raises DeviceError where it has no clock."""
    return DevicePeaks(
        copy=measure_copy(device),
        f32=_measure_operations(device, "f32"),
        f16=_measure_operations(device, "f16") if device.has_f16 else None,
    )


def measure_copy(device: Device) -> float:
    """Return the bytes a second of large copies on `device`, those read and those written both counted."""
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
