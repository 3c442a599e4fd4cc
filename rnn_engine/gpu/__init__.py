"""The only package that knows wgpu: devices, buffers, kernels, and the recorder that replays a plan."""

from rnn_engine.gpu.adapters import DeviceInfo, economical_device, equal_devices, list_devices
from rnn_engine.gpu.device import Device, allocated_on, open_device
from rnn_engine.gpu.kernels import BindGroup, Kernel, Kernels
from rnn_engine.gpu.memory import Buffer, Memory
from rnn_engine.gpu.peaks import DevicePeaks, measure_copy, measure_peaks
from rnn_engine.gpu.recorder import BufferCopy, Dispatch, Download, Plan, Recorder
from rnn_engine.gpu.sizing import SizingDevice
from rnn_engine.gpu.subgroups import measure_subgroup_size
from rnn_engine.gpu.timing import time_dispatches, time_plan

__all__ = [
    "BindGroup",
    "Buffer",
    "BufferCopy",
    "Device",
    "DeviceInfo",
    "DevicePeaks",
    "Dispatch",
    "Download",
    "Kernel",
    "Kernels",
    "Memory",
    "Plan",
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
