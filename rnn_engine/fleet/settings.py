"""The settings of a fleet: how many replicas it has, on which machines, and with which resources."""

from __future__ import annotations

from dataclasses import dataclass, field

from rnn_engine.errors import DeviceError, check_finite
from rnn_engine.gpu import equal_devices


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that Ray reserves for one replica."""

    cpus: float = 1.0
    gpus: float = 0.0  # 1 at most

    def __post_init__(self) -> None:
        """Raise InvalidRequestError unless the numbers are finite and not negative."""
        check_finite("cpus", self.cpus)
        check_finite("gpus", self.gpus)


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the number of replicas follows the number of requests."""

    most: int
    up_seconds: float = 10.0  # for which there must be more requests than slots
    down_seconds: float = 300.0  # for which fewer replicas must suffice

    def __post_init__(self) -> None:
        """Raise InvalidRequestError unless the numbers are finite and not negative."""
        check_finite("up_seconds", self.up_seconds)
        check_finite("down_seconds", self.down_seconds)


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The number of replicas, their cluster, and their resources."""

    replicas: int = 2
    scaling: Scaling | None = None  # None: always as many as `replicas`
    address: str | None = None  # of a Ray cluster; None starts one on this machine
    application: str | None = None  # a running one, whose replicas are used and kept; None starts replicas
    resources: Resources = field(default_factory=Resources)
    device: str = "auto"  # of each replica
    drain_seconds: float = 30.0  # in which a replica that is removed ends its requests

    def __post_init__(self) -> None:
        """Raise InvalidRequestError unless the number is finite and not negative."""
        check_finite("drain_seconds", self.drain_seconds)

    @property
    def most_replicas(self) -> int:
        return self.replicas if self.scaling is None else self.scaling.most


# The place of a replica: its number, and its device on its machine.


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """The numbers and GPUs that Ray gave a replica."""

    number: int  # among all replicas, from 0; that of a replica that is gone is used again
    local_number: int = 0  # among the replicas on its machine
    gpus: tuple[str, ...] = ()  # reserved for it by Ray, by their numbers on the machine


def device_at(place: ReplicaPlace, choice: str) -> str:
    """Return the device of a replica in the form that `--device` takes.

    WebGPU ignores the variable by which Ray hides a process's other GPUs (CUDA_VISIBLE_DEVICES), so the device is
    named. Of several devices that are as good for `choice`, the replica gets the one with the number of its GPU.
    Without a GPU of Ray's, the replicas of a machine take turns. Raises DeviceError if WebGPU does not reach the GPU.
    """
    if choice == "cpu" or choice.isdecimal():
        return choice
    devices = equal_devices(choice)
    if not place.gpus:
        return choice if devices[0].is_software else str(devices[place.local_number % len(devices)].index)
    [gpu, *_] = place.gpus
    number = int(gpu) if gpu.isdecimal() else place.local_number  # Ray may also give it as GPU-<UUID>
    if number >= len(devices) or devices[0].is_software:
        known = ", ".join(f"{device.index} = {device.name}" for device in devices)
        raise DeviceError(f"WebGPU does not reach the GPU {gpu}, which Ray gave the replica; expected one of {known}")
    return str(devices[number].index)
