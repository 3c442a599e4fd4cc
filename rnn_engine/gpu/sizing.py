"""A stand-in for wgpu under `Device`, `Memory` and `Kernels` that only counts what a model would allocate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from rnn_engine.gpu.device import Device, DeviceInfo, choose_adapter
from rnn_engine.gpu.memory import Buffer, Memory

LEAST_LIMITS: Final = {
    "max-buffer-size": 1 << 28,
    "max-storage-buffer-binding-size": 1 << 27,
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-storage-size": 1 << 14,
}
"""The least limits that a device of WebGPU may have."""


class SizingDevice(Device):
    """A device that only counts the buffers allocated on it. A model loaded onto it can't run steps."""

    def __init__(self, info: DeviceInfo, limits: Mapping[str, int]) -> None:
        super().__init__(info, _CountingAdapter(limits), checked=True)

    @classmethod
    def like(cls, choice: str) -> SizingDevice:
        """Return a sizing device (one that only counts) with the kind and limits of the device that `choice` names.

        For `choice` see `choose_adapter`. The real device is not opened.
        """
        info, adapter = choose_adapter(choice)
        return cls(info, adapter.limits)

    @classmethod
    def smallest(cls) -> SizingDevice:
        """Return a device that only counts, with WebGPU's least limits, for machines without a GPU."""
        return cls(DeviceInfo(0, "any device", "discrete", "none", "none"), LEAST_LIMITS)

    def allocate(self) -> Memory:
        return _SizingMemory(self.wgpu_device, self.info.name, self.max_binding_bytes, lambda _: None)


class _SizingMemory(Memory):
    """A group of buffers on a `SizingDevice`, which have a size but no contents."""

    only_counts = True

    def upload(self, buffer: Buffer, offset: int, data: NDArray[Any]) -> None:
        """Do nothing, since buffers of a device that only counts have no contents."""

    def finish_uploads(self, most_staged: int = 0) -> None:
        """Do nothing, since there are no uploads."""

    def close(self) -> None:
        """Do nothing, since a device that only counts has no memory to free."""


@dataclass(frozen=True, slots=True)
class _Buffer:
    label: str
    size: int
    usage: int


class _WgpuDevice:
    """A replacement for `wgpu.GPUDevice` with the methods that loading a model needs."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = limits

    def create_buffer(self, *, label: str, size: int, usage: int) -> _Buffer:
        return _Buffer(label, size, usage)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return a function that returns a new bare object, for any method of `wgpu.GPUDevice` that creates one."""
        if not name.startswith("create_"):
            raise AttributeError(name)
        return lambda **_: object()


class _CountingAdapter:
    """A replacement for `wgpu.GPUAdapter` with the methods that opening a device needs."""

    features: frozenset[str] = frozenset()

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = limits

    def request_device_sync(self, *, required_limits: Mapping[str, int], **_: object) -> _WgpuDevice:
        return _WgpuDevice(required_limits)
