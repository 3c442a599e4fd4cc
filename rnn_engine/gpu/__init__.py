"""The only package that knows wgpu: devices, buffers, kernels, and the recorder that replays a plan."""

from rnn_engine.gpu.device import Device, DeviceInfo, list_devices
from rnn_engine.gpu.kernels import Kernel, Kernels
from rnn_engine.gpu.recorder import BufferCopy, Dispatch, Plan, Recorder
from rnn_engine.gpu.subgroups import measure_subgroup_size

__all__ = [
    "BufferCopy",
    "Device",
    "DeviceInfo",
    "Dispatch",
    "Kernel",
    "Kernels",
    "Plan",
    "Recorder",
    "list_devices",
    "measure_subgroup_size",
]
