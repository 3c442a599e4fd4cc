"""GPU access by WebGPU: devices, buffers, kernels, and the recorder that submits a plan. No other package uses wgpu."""

from rnn_engine.gpu.device import (
    Device,
    DeviceInfo,
    allocated_on,
    economical_device,
    equal_devices,
    list_devices,
    open_device,
)
from rnn_engine.gpu.kernels import BindGroup, Kernel, Kernels
from rnn_engine.gpu.memory import Buffer, Memory
from rnn_engine.gpu.recorder import BufferCopy, Dispatch, Plan, ReadBack, Recorder
from rnn_engine.gpu.sizing import SizingDevice
from rnn_engine.gpu.timing import (
    DevicePeaks,
    measure_copy,
    measure_peaks,
    measure_subgroup_size,
    time_dispatches,
    time_plan,
)

__all__ = [
    "BindGroup",
    "Buffer",
    "BufferCopy",
    "Device",
    "DeviceInfo",
    "DevicePeaks",
    "Dispatch",
    "Kernel",
    "Kernels",
    "Memory",
    "Plan",
    "ReadBack",
    "Recorder",
    "SizingDevice",
    "allocated_on",
    "economical_device",
    "equal_devices",
    "list_devices",
    "measure_copy",
    "measure_peaks",
    "measure_subgroup_size",
    "open_device",
    "time_dispatches",
    "time_plan",
]
