"""Choosing a device, its limits, its memory, and moving bytes to and from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import wgpu
from numpy.typing import NDArray

from rnn_engine.errors import DeviceError, DeviceMemoryError
from rnn_engine.gpu import native

Buffer: TypeAlias = wgpu.GPUBuffer
"""A piece of a device's memory."""

_BACKENDS = ("Vulkan", "Metal", "D3D12")
_KINDS = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software", "Unknown": "other"}
_PREFERENCE = ("discrete", "integrated", "other", "software")
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-storage-size",
)
_UPLOAD_BYTES = 16 << 20
_READ_BACK = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ
_STORAGE = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.STORAGE


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
    return [info for info, _ in _adapters()]


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Raise whatever wgpu raises inside as a DeviceError that says `what` failed."""
    try:
        yield
    except (wgpu.GPUError, RuntimeError) as error:
        raise DeviceError(f"{what}: {error}") from error


class Device:
    """An open device. Knows how many bytes it holds; frees all of them on `close`.

    `checked` modules test every index at run time; unchecked ones are faster and trust the shaders.
    """

    def __init__(self, info: DeviceInfo, adapter: wgpu.GPUAdapter, *, checked: bool) -> None:
        self.info = info
        self.checked = checked
        self.has_subgroups = "subgroup" in adapter.features
        with refusals(f"device {info.name!r} can't be opened"):
            self.wgpu_device = adapter.request_device_sync(
                label="rnn-engine",
                required_features=["subgroup"] if self.has_subgroups else [],
                required_limits={name: adapter.limits[name] for name in _LIMITS},
            )
        self.max_binding_bytes: int = min(
            self.wgpu_device.limits["max-storage-buffer-binding-size"], self.wgpu_device.limits["max-buffer-size"]
        )
        self._buffers: list[Buffer] = []

    @classmethod
    def open(cls, choice: str = "auto", *, checked: bool = False) -> Device:
        """Open a device by `choice`: "auto" (the fastest kind), an index, or a part of a name.

        Raises DeviceError that lists the devices where none fits.
        """
        adapters = _adapters()
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
        return cls(*fits[0], checked=checked)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all buffers that the device holds for us."""
        return sum(buffer.size for buffer in self._buffers)

    def create_buffer(self, label: str, num_bytes: int, *, mappable: bool = False) -> Buffer:
        """A zeroed buffer of at least `num_bytes`: a storage buffer, or one to read back from.

        Raises DeviceMemoryError where the device has no room for it.
        """
        limit = self.wgpu_device.limits["max-buffer-size"] if mappable else self.max_binding_bytes
        if num_bytes > limit:
            raise DeviceMemoryError(
                f"{label}: {num_bytes} bytes asked for, but a buffer of this device has {limit}."
                " Use fewer slots, or a smaller model"
            )
        usage = _READ_BACK if mappable else _STORAGE
        size = max(16, -(-num_bytes // 16) * 16)
        try:
            buffer = self.wgpu_device.create_buffer(label=label, size=size, usage=usage)
        except wgpu.GPUError as error:
            held = self.allocated_bytes / 1e6
            raise DeviceMemoryError(
                f"{label}: no room for {size / 1e6:.1f} MB on {self.info.name}, which holds {held:.1f} MB already:"
                f" {error}. Use fewer slots, or a smaller model"
            ) from error
        self._buffers.append(buffer)
        return buffer

    def upload(self, buffer: Buffer, offset: int, data: NDArray[Any]) -> None:
        """Write `data` into `buffer` from byte `offset` on, in pieces, so that staging memory stays small."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        queue = self.wgpu_device.queue
        with refusals(f"{buffer.label}: {flat.size} bytes can't be written"):
            for start in range(0, flat.size, _UPLOAD_BYTES):
                queue.write_buffer(buffer, offset + start, flat[start : start + _UPLOAD_BYTES])
                if flat.size > _UPLOAD_BYTES:
                    queue.submit([])
                    native.wait_until_idle(self.wgpu_device)

    def read(self, buffer: Buffer, offset: int, num_bytes: int) -> bytes:
        """A copy of `num_bytes` of `buffer` from byte `offset` on, after all submitted work."""
        with refusals(f"{buffer.label}: {num_bytes} bytes can't be read"):
            target = self.wgpu_device.create_buffer(size=num_bytes, usage=_READ_BACK)
            encoder = self.wgpu_device.create_command_encoder()
            encoder.copy_buffer_to_buffer(buffer, offset, target, 0, num_bytes)
            submission = native.submit(self.wgpu_device, encoder.finish())
            mapping = native.Mapping(target, num_bytes)
            native.wait(self.wgpu_device, submission)
            try:
                return mapping.take()
            finally:
                target.destroy()

    def close(self) -> None:
        """Free all memory. Idempotent."""
        for buffer in self._buffers:
            buffer.destroy()
        self._buffers.clear()
        with suppress(wgpu.GPUError, RuntimeError):  # a lost device holds nothing
            self.wgpu_device.queue.submit([])  # the last uploads hold on to their buffers until then
            native.wait_until_idle(self.wgpu_device)


def _adapters() -> list[tuple[DeviceInfo, wgpu.GPUAdapter]]:
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
