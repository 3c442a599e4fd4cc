"""Where a replica is: its number, and which of its machine's devices it has."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.errors import DeviceError
from rnn_engine.gpu import equal_devices


@dataclass(frozen=True, slots=True)
class Place:
    """What Ray gave a replica."""

    number: int  # among all replicas, from 0; one that is gone leaves it to the next
    local_number: int = 0  # among those on its machine
    gpus: tuple[str, ...] = ()  # that Ray has set aside for it, by their numbers on the machine


def device_at(place: Place, choice: str) -> str:
    """Return the device of a replica as `--device` would say it.

    WebGPU does not read what Ray hides a process's GPUs by (CUDA_VISIBLE_DEVICES), so the device is named. Of several
    that are as good for `choice`, it is that with the number of the replica's GPU; without a GPU of Ray's the replicas
    of a machine take turns. Raises DeviceError where WebGPU does not reach the GPU.
    """
    if choice == "cpu" or choice.isdecimal():
        return choice
    devices = equal_devices(choice)
    if not place.gpus:
        return choice if devices[0].is_software else str(devices[place.local_number % len(devices)].index)
    [gpu, *_] = place.gpus
    number = int(gpu) if gpu.isdecimal() else place.local_number  # it may be told as GPU-<UUID>
    if number >= len(devices) or devices[0].is_software:
        known = ", ".join(f"{device.index} = {device.name}" for device in devices)
        raise DeviceError(f"WebGPU does not reach the GPU {gpu}, which Ray gave the replica; there are: {known}")
    return str(devices[number].index)
