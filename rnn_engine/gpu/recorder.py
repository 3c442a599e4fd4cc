"""Plans, each the list of a step's dispatches, and the recorder that submits them to a device.

WebGPU has no command buffer that can be submitted twice, so a plan is encoded anew for every step, with little host
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rnn_engine.errors import DeviceError
from rnn_engine.gpu import native
from rnn_engine.gpu.device import Device
from rnn_engine.gpu.kernels import BindGroup, Kernel
from rnn_engine.gpu.memory import Buffer, device_errors, is_lost, wait_for_mapping

if TYPE_CHECKING:
    import wgpu


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One run of a kernel over x * y workgroups. Its `label` names what it computes."""

    label: str
    kernel: Kernel
    bind_group: BindGroup
    x: int
    y: int = 1
    moved_bytes: int = 0  # of matrices and states, which it reads and writes
    operations: int = 0  # products and sums with its matrices
    waits: int = 0  # for memory, one after the other, if these are many


@dataclass(frozen=True)
class Plan:
    """The dispatches of one step of the model, in order. `str` returns them as a readable list."""

    dispatches: tuple[Dispatch, ...]

    def __str__(self) -> str:
        return "\n".join(f"{d.label}: {d.kernel.label} {d.x} x {d.y}" for d in self.dispatches)

    def once_each(self) -> Plan:
        """Return a plan of each kernel's first dispatch, for drivers that compile late. Its results mean nothing."""
        return Plan(
            tuple({dispatch.kernel.pipeline: dispatch for dispatch in reversed(self.dispatches)}.values())[::-1]
        )

    @cached_property
    def raw(self) -> tuple[native.RawDispatch, ...]:
        return tuple((native.handle(d.kernel.pipeline), native.handle(d.bind_group), d.x, d.y) for d in self.dispatches)


@dataclass(frozen=True, slots=True)
class BufferCopy:
    """A copy of `num_bytes` bytes from one device buffer to another, which runs after a plan's dispatches."""

    source: Buffer
    source_offset: int
    target: Buffer
    target_offset: int
    num_bytes: int


class ReadBack:
    """A transfer of bytes from a device buffer to the host. Only one thread may use it at a time."""

    def __init__(self, device: wgpu.GPUDevice, buffer: Buffer, num_bytes: int, submission: int) -> None:
        self._device = device
        self.submission = submission
        self._label = buffer.label
        with device_errors(f"{self._label} can't be read"):
            self._mapping = native.Mapping(buffer, num_bytes)

    @property
    def is_ready(self) -> bool:
        """True if `take` would return or raise without blocking."""
        if not self._mapping.is_ready:
            native.poll(self._device)
        return self._mapping.is_ready

    def take(self) -> bytes:
        """Wait and return the bytes, once; the buffer is then free. Raises DeviceError if they can't be read."""
        wait_for_mapping(self._device, self._mapping, self.submission)
        if is_lost(self._device):  # the mapping may have succeeded then, but there are no bytes
            raise DeviceError(f"{self._label} can't be read: the device is lost")
        with device_errors(f"{self._label} can't be read"):
            return self._mapping.take()


class Recorder:
    """Submits plans (lists of kernel dispatches) to one device, waits for them, and starts downloads."""

    def __init__(self, device: Device) -> None:
        self._device = device.wgpu_device

    def submit(self, plan: Plan | None = None, copies: Sequence[BufferCopy] = ()) -> int:
        """Submit dispatches, then copies, after all uploads; return an index for `wait`. Raises DeviceError."""
        with device_errors("a step can't be submitted"):
            encoder = self._device.create_command_encoder()
            if plan is not None:
                compute_pass = encoder.begin_compute_pass()
                native.record(compute_pass, plan.raw)
                compute_pass.end()
            for copy in copies:
                encoder.copy_buffer_to_buffer(
                    copy.source, copy.source_offset, copy.target, copy.target_offset, copy.num_bytes
                )
            return native.submit(self._device, encoder.finish())

    def wait(self, submission: int) -> None:
        """Block until the device has executed `submission` and all earlier ones."""
        native.wait(self._device, submission)

    def download(self, buffer: Buffer, num_bytes: int, submission: int) -> ReadBack:
        """Start a transfer after `submission`. Submit nothing that uses the buffer before `ReadBack.take` returns."""
        return ReadBack(self._device, buffer, num_bytes, submission)
