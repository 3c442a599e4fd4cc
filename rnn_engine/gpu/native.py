"""Calls to wgpu-native that bypass wgpu's public Python API, because it lacks them or is too slow.

The public API has no shader modules without run-time checks, can't wait for one submission, and does not give the
length of a clock tick. It costs several times the native call for a dispatch.
Its mapping wakes a thread that waits for all submitted work, and meanwhile no other thread can submit. The mapping here
starts no thread.
The version of wgpu is pinned, since it does not promise to keep these names.

If a device is lost while wgpu-native submits to it, waits for it or polls it, wgpu-native calls abort(). By then
wgpu-core has returned, so no lock is held. `contained` makes an exception of that. Two more calls would end the process
later. Opening a device polls all devices of its instance, so a loss makes a new instance. For the other, the release of
a lost device, see `free_lost`.

wgpu is imported when devices are listed, so that the device `cpu` works without it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from rnn_engine.errors import DeviceError
from rnn_engine.gpu.contained import AbortedError, call_on_aborted_thread, contained

if TYPE_CHECKING:
    import wgpu

T = TypeVar("T")

_api: Any  # these have values from `load_wgpu` on
ffi: Any
lib: Any
_on_mapped: Any
gpu_errors: tuple[type[Exception], ...] = ()
"""The base class of wgpu's errors. Empty until wgpu is imported, when nothing can raise one."""

Handle: TypeAlias = Any
"""A native pointer; valid as long as the wgpu object that it was taken from."""

RawDispatch: TypeAlias = tuple[Handle, Handle, int, int]
"""Pipeline, bind group, workgroups in x and in y."""


def load_wgpu() -> None:
    """Import wgpu. Raises DeviceError if it can't be imported. Idempotent."""
    global _api, ffi, gpu_errors, lib, _on_mapped
    if gpu_errors:
        return
    try:
        import wgpu
        from wgpu.backends.wgpu_native import _api
        from wgpu.backends.wgpu_native._ffi import ffi, lib
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: wgpu's own, if its library can't be loaded
        raise DeviceError(f"the package wgpu can't be loaded: {error}. The device 'cpu' works without it") from error
    if "XDG_RUNTIME_DIR" not in os.environ:  # Mesa would write errors that it finds no desktop
        os.environ.setdefault("NODEVICE_SELECT", "1")
    with suppress(RuntimeError):  # a program that uses wgpu itself has opened its instance already
        _open_instance()
    _on_mapped = ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", _settle_mapping)
    gpu_errors = (wgpu.GPUError,)


def list_adapters() -> list[wgpu.GPUAdapter]:
    """Return the adapters of all backends. Raises DeviceError if wgpu can't be imported."""
    with _instance_lock:
        load_wgpu()
        import wgpu

        adapters: list[wgpu.GPUAdapter] = wgpu.gpu.enumerate_adapters_sync()
        return adapters


_instance_lock = threading.Lock()  # wgpu ends the process if two threads list adapters at once


def _open_instance() -> None:
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    set_instance_extras(backends=["Primary"])  # OpenGL is not used, and may write errors on the console


def handle(wgpu_object: object) -> Handle:
    """Return the native pointer that a Python object of the library wgpu wraps."""
    return wgpu_object._internal  # type: ignore[attr-defined]


def create_trusted_module(device: wgpu.GPUDevice, label: str, code: str) -> wgpu.GPUShaderModule:
    """Compile trusted WGSL without bounds checks and loop limits. Raises wgpu.GPUValidationError."""
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
    """Encode `dispatches` into a compute pass, in order. Errors are raised later, at the command encoder's `finish`."""
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


def open_device(adapter: wgpu.GPUAdapter, features: list[str], limits: dict[str, int]) -> wgpu.GPUDevice:
    """Open a device. Raises wgpu.GPUError or RuntimeError if it can't be opened, or another one is lost just now."""
    request = partial(
        adapter.request_device_sync, label="rnn-engine", required_features=features, required_limits=limits
    )
    try:
        with _instance_lock:
            return contained(request)
    except AbortedError as error:
        raise RuntimeError("another device was lost") from error


_lost: weakref.WeakSet[wgpu.GPUDevice] = weakref.WeakSet()


def is_known_as_lost(device: wgpu.GPUDevice) -> bool:
    """Return True if a call of this module has found that `device` is lost."""
    return device in _lost


def is_lost(device: wgpu.GPUDevice) -> bool:
    """Return True if wgpu knows that `device`, an open GPU, was reset or removed."""
    if device in _lost:
        return True
    try:
        device.create_bind_group_layout(entries=[])  # takes no memory of the device
    except gpu_errors:
        return True
    return False


def _call(device: wgpu.GPUDevice, function: Callable[..., T], *arguments: object) -> T:
    """Return `function(*arguments)`, a native call on `device`. Raises DeviceError if that is lost, before or now."""
    if device not in _lost:
        try:
            return contained(partial(function, *arguments))
        except AbortedError:
            if not is_lost(device):
                os.abort()  # for another reason, after which the process may be damaged
            _lose(device)
    raise DeviceError("the device is lost")


def _lose(device: wgpu.GPUDevice) -> None:
    """Take note that `device` is lost, and open others in a new instance."""
    from wgpu.backends.wgpu_native import _helpers

    with _instance_lock:
        if device not in _lost:
            _lost.add(device)
            instance, _helpers._the_instance = _helpers._the_instance, None
            _open_instance()
            lib.wgpuInstanceRelease(instance)  # it lives as long as one of its devices


def free_lost(device: wgpu.GPUDevice) -> None:
    """Free what a device known as lost has allocated. No thread may use `device` any more; its buffers are destroyed.

    wgpu-native would wait for the device before its release, and end the process, except on a thread that has called
    abort() before. Once that has released its part of the queue, the release of the other part frees all buffers.
    """
    device._poller.stop()
    device_handle, device._internal = handle(device), None
    queue_handle, device.queue._internal = handle(device.queue), None
    call_on_aborted_thread(partial(lib.wgpuDeviceRelease, device_handle))
    with suppress(AbortedError):
        contained(partial(lib.wgpuQueueRelease, queue_handle))


def submit(device: wgpu.GPUDevice, *commands: wgpu.GPUCommandBuffer) -> int:
    """Submit `commands`, after all pending writes. Return the submission's index, for `wait`. Raises DeviceError."""
    commands_array = ffi.new("WGPUCommandBuffer[]", [handle(command) for command in commands])
    function: Callable[..., int] = _api.libf.wgpuQueueSubmitForIndex
    return _call(device, function, handle(device.queue), len(commands), commands_array)


def timestamp_period(device: wgpu.GPUDevice) -> float:
    """Return the length of one tick of the device's timestamps, in nanoseconds."""
    return float(_api.libf.wgpuQueueGetTimestampPeriod(handle(device.queue)))


def wait(device: wgpu.GPUDevice, submission: int) -> None:
    """Block until the device has executed `submission` and all earlier ones, but not later ones. Raises DeviceError.

    It may return earlier: wgpu-core bounds such a wait (CLEANUP_WAIT_MS), and wgpu-native does not tell.
    """
    _call(device, lib.wgpuDevicePoll, handle(device), True, ffi.new("WGPUSubmissionIndex *", submission))


def wait_until_idle(device: wgpu.GPUDevice) -> None:
    """Block until the device has executed all submitted work. Raises DeviceError."""
    _call(device, lib.wgpuDevicePoll, handle(device), True, ffi.NULL)


def poll(device: wgpu.GPUDevice) -> None:
    """Have wgpu-native mark each `Mapping` whose work the device has executed as ready. Does not block for that.

    Raises DeviceError.
    """
    _call(device, lib.wgpuDevicePoll, handle(device), False, ffi.NULL)


class Mapping:
    """A read in progress or done of the first `num_bytes` of a device buffer that the host can map.

    It is ready once the device has done all work submitted before it was made, and some thread has polled the device or
    waited for it. No submission may use the buffer until then.
    """

    def __init__(self, device: wgpu.GPUDevice, buffer: wgpu.GPUBuffer, num_bytes: int) -> None:
        self._device = device
        self._buffer = buffer
        self._num_bytes = num_bytes
        self._settled = threading.Event()
        self._data = b""
        self._error: str | None = "the device is lost"
        self._key = ffi.new_handle(self)
        _mappings[self._key] = self
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = _on_mapped
        info.userdata1 = self._key
        try:
            _api.libf.wgpuBufferMapAsync(handle(buffer), lib.WGPUMapMode_Read, 0, num_bytes, info[0])
        except BaseException:
            _mappings.pop(self._key, None)
            raise

    @property
    def is_ready(self) -> bool:
        """True if `take` would return or raise without waiting."""
        return self._settled.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait some seconds until a thread that polls reports the mapping as ready. Return `is_ready`."""
        return self._settled.wait(seconds)

    def take(self) -> bytes:
        """Return the bytes, when it is ready or the device lost. Raises DeviceError if they could not be read."""
        if self._error is not None:
            raise DeviceError(self._error)
        return self._data

    def _settle(self, status: int, message: str) -> None:
        """Read the bytes, on the thread that polls: its calls are contained, and the device may be lost meanwhile."""
        if status != lib.WGPUMapAsyncStatus_Success:
            self._error = f"the buffer can't be mapped: status {status}, {message}"
        elif not is_lost(self._device):  # if it is, the buffer was mapped perhaps, but there are no bytes
            try:
                self._data, self._error = copy_mapped(self._buffer, self._num_bytes), None
            except Exception as error:  # wgpu-native takes none
                self._error = str(error)
            finally:
                _api.libf.wgpuBufferUnmap(handle(self._buffer))
        self._settled.set()


def copy_mapped(buffer: wgpu.GPUBuffer, num_bytes: int) -> bytes:
    """Return a copy of the first `num_bytes` of a buffer that is mapped to the host's memory."""
    address = _api.libf.wgpuBufferGetConstMappedRange(handle(buffer), 0, num_bytes)
    return bytes(ffi.buffer(address, num_bytes))


_mappings: dict[Handle, Mapping] = {}  # kept alive until they are settled: wgpu-native holds a bare pointer to each


def _settle_mapping(status: int, message: Handle, key: Handle, _unused: Handle) -> None:
    mapping = ffi.from_handle(key)
    _mappings.pop(mapping._key, None)
    mapping._settle(status, _api.from_c_string_view(message))
