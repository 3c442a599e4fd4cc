"""Device memory: groups of buffers that are freed together, and transfers between host and device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import DeviceError, DeviceMemoryError
from rnn_engine.gpu import native
from rnn_engine.types import BufferUse, DeviceMemory

if TYPE_CHECKING:
    import wgpu


def wait_for_mapping(device: wgpu.GPUDevice, mapping: native.Mapping, submission: int) -> None:
    """Wait for `submission` until `mapping` is ready, or the device is lost, also if wgpu waits less long."""
    while not mapping.is_ready:
        native.wait(device, submission)
        if mapping.wait(_REPORT_SECONDS) or native.is_lost(device):
            return


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Return a context manager that converts wgpu's errors to DeviceError, with messages that begin with `what`."""
    try:
        yield
    except native.gpu_errors + (RuntimeError,) as error:  # noqa: RUF005  # mypy knows no starred tuple here
        raise DeviceError(f"{what}: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    """Return the message of an error of wgpu without its headings, on one line and without a full stop."""
    lines = (line.strip() for line in str(error).splitlines())
    return ": ".join(line for line in lines if line not in ("", "Validation Error", "Caused by:")).removesuffix(".")


Buffer: TypeAlias = "wgpu.GPUBuffer"
"""A buffer in a device's memory."""

_REPORT_SECONDS = 0.1  # in which another thread that has polled reports what it has found
_UPLOAD_BYTES = 4 << 20
_MOST_STAGED_BYTES = 16 << 20
_READ_BACK = "COPY_DST|MAP_READ"
_STORAGE = "COPY_DST|COPY_SRC|STORAGE"


def read_buffer(device: wgpu.GPUDevice, buffer: Buffer, offsets: Sequence[int], num_bytes: int) -> bytes:
    """Wait for all submitted work, and return `num_bytes` bytes of `buffer` from each of `offsets` on.

    Raises DeviceError or a wgpu error.
    """
    target = device.create_buffer(size=len(offsets) * num_bytes, usage=_READ_BACK)
    try:
        encoder = device.create_command_encoder()
        for place, offset in enumerate(offsets):
            encoder.copy_buffer_to_buffer(buffer, offset, target, place * num_bytes, num_bytes)
        submission = native.submit(device, encoder.finish())
        mapping = native.Mapping(device, target, len(offsets) * num_bytes)
        wait_for_mapping(device, mapping, submission)
        return mapping.take()
    finally:
        target.destroy()


class Memory:
    """A group of buffers on one device, which `close` frees. Only one thread may use it at a time."""

    only_counts = False  # its buffers have no contents; see `SizingDevice`

    def __init__(
        self, device: wgpu.GPUDevice, device_name: str, max_binding_bytes: int, on_close: Callable[[Memory], None]
    ) -> None:
        self._device = device
        self._device_name = device_name
        self._on_close = on_close
        self.max_binding_bytes = max_binding_bytes
        self.max_buffer_bytes: int = device.limits["max-buffer-size"]
        self._buffers: dict[BufferUse, list[Buffer]] = {"weights": [], "states": [], "buffers": []}
        self._staged_bytes = 0  # of uploads for which nobody is known to wait

    @property
    def used(self) -> DeviceMemory:
        return DeviceMemory(**{use: sum(buffer.size for buffer in found) for use, found in self._buffers.items()})

    @property
    def allocated_bytes(self) -> int:
        return self.used.total

    def create_buffer(
        self, label: str, num_bytes: int, *, use: BufferUse = "buffers", mappable: bool = False
    ) -> Buffer:
        """Allocate a zeroed buffer for `use`, or for the host to read if `mappable`. Raises DeviceMemoryError."""
        limit = self.max_buffer_bytes if mappable else self.max_binding_bytes
        if num_bytes > limit:
            raise DeviceMemoryError(
                f"{label}: {num_bytes} bytes are needed, but a buffer on this device has at most {limit} bytes."
                " Use fewer slots, or a smaller model"
            )
        size = max(16, -(-num_bytes // 16) * 16)
        usage = _READ_BACK if mappable else _STORAGE
        try:
            buffer = self._device.create_buffer(label=label, size=size, usage=usage)
        except native.gpu_errors as error:
            held = self.allocated_bytes / 1e6
            raise DeviceMemoryError(
                f"{label}: no room for {size / 1e6:.1f} MB on {self._device_name}, on which this model already takes"
                f" {held:.1f} MB: {_in_one_line(error)}. Use fewer slots, or a smaller model"
            ) from error
        self._buffers[use].append(buffer)
        return buffer

    def upload(self, buffer: Buffer, offset: int, data: NDArray[Any]) -> None:
        """Write `data` to a buffer on the device, from byte `offset` on.

        The device does it after all earlier submissions and before all later ones. Until then the driver keeps a copy.
        This waits for the device only where the copies of the group's uploads would exceed 16 MB.
        """
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        with device_errors(f"{buffer.label}: {flat.size} bytes can't be written"):
            for start in range(0, flat.size, _UPLOAD_BYTES):
                piece = flat[start : start + _UPLOAD_BYTES]
                self.finish_uploads(_MOST_STAGED_BYTES - piece.size)
                self._device.queue.write_buffer(buffer, offset + start, piece)
                self._staged_bytes += piece.size

    def finish_uploads(self, most_staged: int = 0) -> None:
        """Wait until the device has done the group's uploads, if the driver's copies exceed `most_staged` bytes."""
        if self._staged_bytes > most_staged:
            self._staged_bytes = 0
            native.submit(self._device)
            native.wait_until_idle(self._device)

    def leave_uploads(self) -> None:
        """Count the uploads so far as done, because the caller waits for a later submission soon."""
        self._staged_bytes = 0

    def read(self, buffer: Buffer, offset: int, num_bytes: int, *others: int) -> bytes:
        """Wait for all submitted work, and return `num_bytes` bytes of a device buffer, from byte `offset` on.

        As many bytes from each of the offsets `others` on follow.
        """
        with device_errors(f"{buffer.label}: {num_bytes} bytes can't be read"):
            data = read_buffer(self._device, buffer, (offset, *others), num_bytes)
        self.leave_uploads()
        return data

    def close(self) -> None:
        """Free all buffers of the group and wait until the device has released them. Idempotent."""
        for buffers in self._buffers.values():
            for buffer in buffers:
                buffer.destroy()
            buffers.clear()
        if not native.is_lost(self._device):
            with suppress(DeviceError):  # it is lost now
                native.submit(self._device)  # the last uploads keep their buffers until a submission
                native.wait_until_idle(self._device)
        self._on_close(self)
