"""A device that runs nothing and stores nothing. Load a model onto it to count the memory that a real one needs.

It replaces wgpu under `Device`, `Memory` and `Kernels`, so that the code that allocates on a device also counts here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from rnn_engine.gpu.device import Device, DeviceInfo, choose_adapter
from rnn_engine.gpu.memory import Buffer, Memory

_LEAST_LIMITS: Final = {
    "max-buffer-size": 1 << 28,
    "max-storage-buffer-binding-size": 1 << 27,
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-storage-size": 1 << 14,
}
"""The least limits that a device of WebGPU may have."""


class SizingDevice(Device):
    """A device on which a model can be loaded to read its runner's `allocated_bytes`. It can't run steps."""

    def __init__(self, info: DeviceInfo, limits: Mapping[str, int]) -> None:
        super().__init__(info, _CountingAdapter(limits), checked=True)

    @classmethod
    def like(cls, choice: str) -> SizingDevice:
        """Return one with the kind and the limits of a real device (see `choose_adapter`). Does not open that."""
        info, adapter = choose_adapter(choice)
        return cls(info, adapter.limits)

    @classmethod
    def smallest(cls) -> SizingDevice:
        """Return one with the least limits that a device may have, for machines without a device."""
        return cls(DeviceInfo(0, "any device", "discrete", "none", "none"), _LEAST_LIMITS)

    def allocate(self) -> Memory:
        return _SizingMemory(self.wgpu_device, self.info.name, self.max_binding_bytes, lambda _: None)


class _SizingMemory(Memory):
    """Buffers that have a size but no contents."""

    def upload(self, buffer: Buffer, offset: int, data: NDArray[Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


@dataclass(frozen=True, slots=True)
class _Buffer:
    label: str
    size: int
    usage: int


class _WgpuDevice:
    """The part of a `wgpu.GPUDevice` that is used while a model is loaded."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = limits

    def create_buffer(self, *, label: str, size: int, usage: int) -> _Buffer:
        return _Buffer(label, size, usage)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return a function that returns None, for shader modules, pipelines, layouts and bind groups."""
        if not name.startswith("create_"):
            raise AttributeError(name)
        return lambda **_: None


class _CountingAdapter:
    """The part of a `wgpu.GPUAdapter` that opening a device uses."""

    features: frozenset[str] = frozenset()

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = limits

    def request_device_sync(self, *, required_limits: Mapping[str, int], **_: object) -> _WgpuDevice:
        return _WgpuDevice(required_limits)
