"""The few calls that go past wgpu's public Python API, straight to wgpu-native.

Two reasons: a shader module without run-time checks can't be had otherwise, and a dispatch through the public API
costs several times the native call. The package's version is pinned, since these names are not promised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import wgpu
from wgpu.backends.wgpu_native import _api
from wgpu.backends.wgpu_native._ffi import ffi, lib

Handle: TypeAlias = Any
"""A native pointer; valid as long as the wgpu object that it was taken from."""

RawDispatch: TypeAlias = tuple[Handle, Handle, int, int]
"""Pipeline, bind group, workgroups in x and in y."""


def handle(wgpu_object: object) -> Handle:
    """The native pointer inside a wgpu object."""
    return wgpu_object._internal  # type: ignore[attr-defined]


def create_trusted_module(device: wgpu.GPUDevice, label: str, code: str) -> wgpu.GPUShaderModule:
    """A WGSL shader module with no bounds checks and no loop limits: only for shaders that are known to be right.

    Raises wgpu.GPUValidationError where the code is not valid.
    """
    source = _api.new_struct_p("WGPUShaderSourceWGSL *", code=_api.to_c_string_view(code))
    source[0].chain.next = ffi.NULL
    source[0].chain.sType = lib.WGPUSType_ShaderSourceWGSL
    descriptor = _api.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=ffi.cast("WGPUChainedStruct *", source),
        label=_api.to_c_string_view(label),
    )
    module = _api.libf.wgpuDeviceCreateShaderModuleTrusted(handle(device), descriptor, lib.WGPUShaderRuntimeChecks_None)
    return _api.GPUShaderModule(label, module, device)


def record(compute_pass: wgpu.GPUComputePassEncoder, dispatches: Iterable[RawDispatch]) -> None:
    """Encode `dispatches` in order. An error shows when the command encoder is finished."""
    encoder = handle(compute_pass)
    set_pipeline = lib.wgpuComputePassEncoderSetPipeline
    set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    null = ffi.NULL
    current = None
    for pipeline, bind_group, x, y in dispatches:
        if pipeline is not current:
            set_pipeline(encoder, pipeline)
            current = pipeline
        set_bind_group(encoder, 0, bind_group, 0, null)
        dispatch(encoder, x, y, 1)


def wait_until_idle(device: wgpu.GPUDevice) -> None:
    """Block until the device has done all that was submitted."""
    lib.wgpuDevicePoll(handle(device), True, ffi.NULL)
