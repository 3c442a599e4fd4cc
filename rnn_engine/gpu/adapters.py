"""The devices of this machine, and choosing one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import wgpu

from rnn_engine.errors import DeviceError

_BACKENDS = ("Vulkan", "Metal", "D3D12")
_KINDS = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software", "Unknown": "other"}
_PREFERENCE = ("discrete", "integrated", "other", "software")
_listing = threading.Lock()  # wgpu ends the process where two threads list adapters at once


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that can run the engine."""

    index: int
    name: str
    kind: str  # discrete, integrated, other or software
    backend: str
    driver: str

    @property
    def is_software(self) -> bool:
        return self.kind == "software"


def list_devices() -> list[DeviceInfo]:
    """All devices that WebGPU reaches here, in the order of their indices."""
    return [info for info, _ in _list_adapters()]


def economical_device() -> str:
    """Return the choice of a device that takes little power: the first that is part of the processor, else "auto"."""
    return next((str(info.index) for info in list_devices() if info.kind == "integrated"), "auto")


def choose_adapter(choice: str) -> tuple[DeviceInfo, wgpu.GPUAdapter]:
    """Find a device by `choice`: "auto" (the fastest kind), an index, or a part of a name.

    Raises DeviceError that lists the devices where none fits.
    """
    return _fitting(choice)[0]


def equal_devices(choice: str) -> list[DeviceInfo]:
    """Return the device of `choice` (see `choose_adapter`) and all others that fit and have its kind and backend.

    They are in the order of their indices. Raises DeviceError where none fits.
    """
    first, *others = [info for info, _ in _fitting(choice)]
    alike = [info for info in others if (info.kind, info.backend) == (first.kind, first.backend)]
    return sorted([first, *alike], key=lambda info: info.index)


def _fitting(choice: str) -> list[tuple[DeviceInfo, wgpu.GPUAdapter]]:
    """Return the devices that fit, the one to take first. Raises DeviceError where there is none."""
    adapters = _list_adapters()
    if not adapters:
        raise DeviceError(
            "no GPU that WebGPU reaches: install a Vulkan driver (on Debian or Ubuntu: mesa-vulkan-drivers),"
            " or choose the device 'cpu'"
        )
    if choice == "auto":
        fits = sorted(adapters, key=lambda pair: _PREFERENCE.index(pair[0].kind))
    elif choice.isdecimal():
        fits = [pair for pair in adapters if pair[0].index == int(choice)]
    else:
        fits = [pair for pair in adapters if choice.lower() in pair[0].name.lower()]
    if not fits:
        known = ", ".join(f"{info.index} = {info.name}" for info, _ in adapters)
        raise DeviceError(f"no device {choice!r}; there are: {known}, and 'cpu' or 'auto'")
    return fits


def _list_adapters() -> list[tuple[DeviceInfo, wgpu.GPUAdapter]]:
    with _listing:
        return list(_enumerate())


def _enumerate() -> Iterator[tuple[DeviceInfo, wgpu.GPUAdapter]]:
    index = 0
    for adapter in wgpu.gpu.enumerate_adapters_sync():
        backend = adapter.info["backend_type"]
        if backend in _BACKENDS:
            kind = _KINDS.get(adapter.info["adapter_type"], "other")
            yield (
                DeviceInfo(index, adapter.info["device"], kind, backend, adapter.info["description"]),
                adapter,
            )
            index += 1
