"""Settings of a fleet: the number of its replicas, their Ray cluster, their resources and their devices."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.bounds import Kind, Settings, part, setting
from rnn_engine.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Resources(Settings):
    """The CPUs and GPUs that Ray reserves for one replica."""

    cpus: float = setting(1.0, Kind(float, low=0), "--replica-cpus").help(
        "CPUs that Ray reserves for each replica, which may use more."
    )
    gpus: float = setting(0.0, Kind(float, low=0, high=1), "--replica-gpus").help(
        "GPUs that Ray reserves for each replica, such as 0.5 for two replicas on one GPU."
    )


@dataclass(frozen=True, slots=True)
class FleetSettings(Settings):
    """The settings of a fleet: how many replicas it has, in which Ray cluster, and with which resources."""

    replicas: int = setting(2, Kind(int, low=1)).help("The number of replicas.")
    address: str | None = setting(None, Kind(metavar="HOST:PORT")).help(
        "The Ray cluster that runs the replicas: the address of its head, or auto on a machine of the cluster.  "
        "[default: a cluster on this machine, which ends with the command]"
    )
    application: str | None = setting(None, Kind(metavar="NAME")).help(
        "Use the replicas of this application, which runs on the cluster, instead of starting replicas; see "
        "deploy/serve.yaml."
    )
    resources: Resources = part(Resources)
    device: str = "auto"  # of each replica
    drain_seconds: float = 30.0  # in which a replica that is removed ends its requests


# The place of a replica in the fleet, and the device that it uses there.


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """A replica's place: its number in the fleet, its number on its machine, and the GPUs reserved for it."""

    number: int  # among all replicas, from 0; that of a replica that is gone is used again
    local_number: int = 0  # among the replicas on its machine
    gpus: tuple[str, ...] = ()  # reserved for it by Ray, by their numbers on the machine


def device_at(place: ReplicaPlace, choice: str) -> str:
    """Return the device for the replica at `place`, as a value of `--device`, given the fleet's value `choice`.

    WebGPU ignores the variable by which Ray hides a process's other GPUs (CUDA_VISIBLE_DEVICES), so the device is
    named. Of several devices that are as good for `choice`, the replica gets the one with the number of its GPU. If Ray
    reserved no GPU, the replicas of a machine take turns. So "auto" without a GPU is the software driver, and never
    numpy, for which each replica would decide by itself. Raises DeviceError if WebGPU does not reach the GPU.
    """
    from rnn_engine.gpu import equal_devices
    from rnn_engine.loading.placement import is_placement

    if choice == "cpu" or choice.isdecimal() or is_placement(choice):
        return choice
    devices = equal_devices(choice)
    if not place.gpus:
        return str(devices[place.local_number % len(devices)].index)
    [gpu, *_] = place.gpus
    number = int(gpu) if gpu.isdecimal() else place.local_number  # Ray may also give it as GPU-<UUID>
    if number >= len(devices) or devices[0].is_software:
        known = ", ".join(f"{device.index} = {device.name}" for device in devices)
        raise DeviceError(f"WebGPU does not reach the GPU {gpu}, which Ray gave the replica; expected one of {known}")
    return str(devices[number].index)
