"""How many replicas there are, where, and what each has."""

from __future__ import annotations

from dataclasses import dataclass, field

from rnn_engine.errors import DeviceError, check_finite
from rnn_engine.gpu import equal_devices


@dataclass(frozen=True, slots=True)
class Resources:
    """What Ray sets aside for one replica."""

    cpus: float = 1.0
    gpus: float = 0.0  # 1 at most

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("cpus", self.cpus)
        check_finite("gpus", self.gpus)


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the number of replicas follows that of the requests."""

    most: int
    up_seconds: float = 10.0  # that there are more requests than slots
    down_seconds: float = 300.0  # that fewer replicas would do

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("up_seconds", self.up_seconds)
        check_finite("down_seconds", self.down_seconds)


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How many replicas there are, and where."""

    replicas: int = 2
    scaling: Scaling | None = None  # None: always as many as `replicas`
    address: str | None = None  # of a Ray cluster; None starts one on this machine
    application: str | None = None  # whose replicas are there already, which Serve keeps; None starts some
    resources: Resources = field(default_factory=Resources)
    device: str = "auto"  # of each replica
    drain_seconds: float = 30.0  # in which a replica that leaves ends its requests

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("drain_seconds", self.drain_seconds)

    @property
    def most_replicas(self) -> int:
        return self.replicas if self.scaling is None else self.scaling.most


# Where a replica is: its number, and which of its machine's devices it has.


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """What Ray gave a replica."""

    number: int  # among all replicas, from 0; one that is gone leaves it to the next
    local_number: int = 0  # among those on its machine
    gpus: tuple[str, ...] = ()  # that Ray has set aside for it, by their numbers on the machine


def device_at(place: ReplicaPlace, choice: str) -> str:
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
