"""The GPUs of this machine: functions that list, choose and open them, and the device that models share."""

from __future__ import annotations

import gc
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rnn_engine.errors import DeviceError
from rnn_engine.gpu import native
from rnn_engine.gpu.kernels import Kernels
from rnn_engine.gpu.memory import Memory, device_errors

if TYPE_CHECKING:
    import wgpu

logger = logging.getLogger(__name__)

_BACKENDS = ("Vulkan", "Metal", "D3D12")
_KINDS = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software", "Unknown": "other"}
_PREFERENCE = ("discrete", "integrated", "other", "software")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The description of a GPU or software device that can run the engine."""

    index: int
    name: str
    kind: str  # discrete, integrated, other or software
    backend: str
    driver: str

    @property
    def is_software(self) -> bool:
        return self.kind == "software"


def list_devices() -> list[DeviceInfo]:
    """Return all devices by index; none, with a warning in the log, if wgpu can't be loaded."""
    try:
        return [info for info, _ in _list_adapters()]
    except DeviceError as error:
        logger.warning("%s", error)
        return []


def economical_device() -> str:
    """Return the index of the first integrated GPU for `open_device`; "auto" if there is none."""
    return next((str(info.index) for info in list_devices() if info.kind == "integrated"), "auto")


def choose_adapter(choice: str) -> tuple[DeviceInfo, wgpu.GPUAdapter]:
    """Return the device for "auto" (the fastest kind), an index or a part of a name. Raises DeviceError."""
    return _fitting(choice)[0]


def equal_devices(choice: str) -> list[DeviceInfo]:
    """Return the device that `choice` names and all others of its kind and backend. Raises DeviceError."""
    first, *others = [info for info, _ in _fitting(choice)]
    alike = [info for info in others if (info.kind, info.backend) == (first.kind, first.backend)]
    return sorted([first, *alike], key=lambda info: info.index)


def _fitting(choice: str) -> list[tuple[DeviceInfo, wgpu.GPUAdapter]]:
    """Return the devices that match `choice`, the best first. Raises DeviceError if none does."""
    adapters = _list_adapters()
    if not adapters:
        raise DeviceError(
            "WebGPU finds no GPU: install a Vulkan driver (on Debian or Ubuntu: mesa-vulkan-drivers),"
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
        raise DeviceError(f"no device {choice!r}; expected one of {known}, or 'cpu' or 'auto'")
    return fits


def _list_adapters() -> list[tuple[DeviceInfo, wgpu.GPUAdapter]]:
    found: list[tuple[DeviceInfo, wgpu.GPUAdapter]] = []
    for adapter in native.list_adapters():
        info = adapter.info
        if info["backend_type"] in _BACKENDS:
            kind = _KINDS.get(info["adapter_type"], "other")
            known = DeviceInfo(len(found), info["device"], kind, info["backend_type"], info["description"])
            found.append((known, adapter))
    return found


_FEATURES = ("subgroup", "timestamp-query", "shader-f16")  # used if a device has them
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-storage-size",
)
_MOST_BINDING_BYTES = (1 << 32) - 1  # shaders have the sizes of bindings as u32, also where a device allows more


class Device:
    """An open GPU with its kernels and buffers, for any thread. Unless `checked`, shaders' indices are trusted."""

    def __init__(self, info: DeviceInfo, adapter: wgpu.GPUAdapter, *, checked: bool) -> None:
        self.info = info
        features = [feature for feature in _FEATURES if feature in adapter.features]
        self.has_subgroups = "subgroup" in features
        self.has_timestamps = "timestamp-query" in features
        self.has_f16 = "shader-f16" in features
        with device_errors(f"device {info.name!r} can't be opened"):
            self.wgpu_device = native.open_device(adapter, features, {name: adapter.limits[name] for name in _LIMITS})
        limits = self.wgpu_device.limits
        most = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"], _MOST_BINDING_BYTES)
        self.max_binding_bytes: int = most // 16 * 16  # since buffers have such sizes
        self.kernels = Kernels(self.wgpu_device, info.name, checked=checked)
        self.is_retired = False
        self._lock = threading.Lock()
        self._groups: set[Memory] = set()

    @property
    def is_lost(self) -> bool:
        return native.is_lost(self.wgpu_device)

    def retire(self) -> None:
        """Mark the device as faulty, so that `open_device` opens it anew. Loaded models stay on this object."""
        self.is_retired = True

    @property
    def allocated_bytes(self) -> int:
        with self._lock:
            return sum(group.allocated_bytes for group in self._groups)

    def allocate(self) -> Memory:
        """Return an empty group of buffers, which the caller closes. Raises DeviceError if the device is lost."""
        memory = Memory(self.wgpu_device, self.info.name, self.max_binding_bytes, self._remove)
        with self._lock:
            if native.is_known_as_lost(self.wgpu_device):  # and perhaps freed
                raise DeviceError(f"device {self.info.name!r} is lost")
            self._groups.add(memory)
        return memory

    def _remove(self, memory: Memory) -> None:
        with self._lock:
            if memory in self._groups:
                self._groups.remove(memory)
                if not self._groups and native.is_known_as_lost(self.wgpu_device):
                    native.free_lost(self.wgpu_device)


_opened: dict[tuple[DeviceInfo, bool], Device] = {}
_opening = threading.Lock()


def open_device(choice: str = "auto", *, checked: bool = False) -> Device:
    """Return the device that `choice` names, opened at the first call or after a loss. For any thread."""
    info, adapter = choose_adapter(choice)
    with _opening:
        device = _opened.get((info, checked))
        if device is None or device.is_retired or device.is_lost:
            if device is not None:
                gc.collect()  # what a lost device still holds is freed with the last of its objects
            device = _opened[info, checked] = Device(info, adapter, checked=checked)
        return device


def allocated_on(info: DeviceInfo) -> int:
    """Return the bytes that all models of this process have allocated on the device `info`. For any thread."""
    with _opening:
        return sum(device.allocated_bytes for (opened, _), device in _opened.items() if opened == info)
