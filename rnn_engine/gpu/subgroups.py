"""How wide a device's subgroups really are: what an adapter says of itself is only a range."""

from __future__ import annotations

import struct
from contextlib import closing

from rnn_engine.gpu.device import Device
from rnn_engine.gpu.recorder import Dispatch, Plan, Recorder


def measure_subgroup_size(device: Device) -> int:
    """Lanes of a subgroup; 0 where the device has no subgroups, or numbers lanes in an order of its own."""
    if not device.has_subgroups:
        return 0
    kernel = device.kernels.get("subgroup_size", {"THREADS": 64})
    with closing(device.allocate()) as memory:
        buffer = memory.create_buffer("subgroup size", 4)
        bind_group = device.kernels.bind(kernel.source, {"size": buffer})
        Recorder(device).submit(Plan((Dispatch("subgroup size", kernel, bind_group, 1),)))
        (size,) = struct.unpack("<I", memory.read(buffer, 0, 4))
    return int(size)
