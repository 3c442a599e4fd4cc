"""A device's kernels: a cache that compiles WGSL for given constants, and bind groups by the WGSL's variables."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rnn_engine.errors import DeviceError
from rnn_engine.gpu import native
from rnn_engine.gpu.memory import Buffer
from rnn_engine_shaders import Constant, Include, ShaderSource, specialise

if TYPE_CHECKING:
    import wgpu

BindGroup: TypeAlias = "wgpu.GPUBindGroup"
"""The buffers that are bound to a kernel's variables."""

_KERNELS = 512  # that are kept for one device; a model has about twenty


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled pipeline with its source. Kernels of one WGSL file can use the same bind groups."""

    label: str
    source: ShaderSource
    pipeline: wgpu.GPUComputePipeline


class Kernels:
    """Compiles the kernels of a device and caches the most recently used. May be called from any thread."""

    def __init__(self, device: wgpu.GPUDevice, device_name: str, *, checked: bool, limit: int = _KERNELS) -> None:
        """Prepare to compile for `device`; at most `limit` kernels are kept. For `checked` see `Device`."""
        self._device = device
        self._device_name = device_name
        self._checked = checked
        self._limit = limit
        self.workgroup_bytes: int = device.limits["max-compute-workgroup-storage-size"]
        self.storage_buffers: int = device.limits["max-storage-buffers-per-shader-stage"]
        self._lock = threading.RLock()
        self._kernels: dict[tuple[object, ...], Kernel] = {}
        self._layouts: dict[tuple[object, ...], wgpu.GPUBindGroupLayout] = {}

    def __len__(self) -> int:
        return len(self._kernels)

    def get(
        self, name: str, constants: Mapping[str, Constant], includes: Mapping[str, Include] | None = None
    ) -> Kernel:
        """Return the kernel of `name`.wgsl, compiled at the first call. Raises DeviceError, with file and line."""
        key = (name, tuple(constants.items()), tuple((includes or {}).items()))
        with self._lock:
            kernel = self._kernels.pop(key, None) or self._compile(specialise(name, constants, includes))
            self._kernels[key] = kernel  # now the last of the dictionary
            if len(self._kernels) > self._limit:
                del self._kernels[next(iter(self._kernels))]
            return kernel

    def bind(self, source: ShaderSource, buffers: Mapping[str, Buffer]) -> BindGroup:
        """Return the bind group of `buffers` by variable. Raises KeyError if the names are not those of the WGSL."""
        if buffers.keys() != source.bindings.keys():
            raise KeyError(f"{source.name}.wgsl binds {sorted(source.bindings)}, not {sorted(buffers)}")
        return self._device.create_bind_group(
            label=source.name,
            layout=self._layout(source),
            entries=[
                {
                    "binding": source.bindings[name].number,
                    "resource": {"buffer": buffer, "offset": 0, "size": buffer.size},
                }
                for name, buffer in buffers.items()
            ],
        )

    def _compile(self, source: ShaderSource) -> Kernel:
        device = self._device
        try:
            if self._checked:
                module = device.create_shader_module(label=source.name, code=source.text)
            else:
                module = native.create_trusted_module(device, source.name, source.text)
            pipeline = device.create_compute_pipeline(
                label=source.name,
                layout=device.create_pipeline_layout(bind_group_layouts=[self._layout(source)]),
                compute={"module": module, "entry_point": "main"},
            )
        except native.gpu_errors as error:
            raise DeviceError(f"{self._device_name} can't compile {_with_origins(str(error), source)}") from error
        return Kernel(source.name, source, pipeline)

    def _layout(self, source: ShaderSource) -> wgpu.GPUBindGroupLayout:
        bindings = tuple(sorted((binding.number, binding.read_only) for binding in source.bindings.values()))
        with self._lock:
            if bindings in self._layouts:
                return self._layouts[bindings]
            layout = self._layouts[bindings] = self._device.create_bind_group_layout(
                entries=[
                    {
                        "binding": number,
                        "visibility": "COMPUTE",
                        "buffer": {"type": "read-only-storage" if read_only else "storage"},
                    }
                    for number, read_only in bindings
                ]
            )
            return layout


def _with_origins(message: str, source: ShaderSource) -> str:
    """Return a shader compiler's `message`, preceded by the name and line of the WGSL file that caused it."""
    found = re.search(r"wgsl:(\d+):(\d+)", message)
    place = source.origin(int(found[1])) if found else f"{source.name}.wgsl"
    return f"{place}: {message}"
