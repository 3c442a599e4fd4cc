"""Plans, each the list of a step's dispatches, and the recorder that submits them to a device.

WebGPU has no command buffer that can be submitted twice, so a plan is encoded anew for every step, with little host
time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from rnn_engine.errors import DeviceError
from rnn_engine.gpu import native
from rnn_engine.gpu.device import Device
from rnn_engine.gpu.kernels import BindGroup, Kernel
from rnn_engine.gpu.memory import Buffer, device_errors, wait_for_mapping

if TYPE_CHECKING:
    import wgpu


_LONGEST_SUBMIT: Final = 0.2  # seconds; systems reset a GPU that takes two or more for one
_FIRST_RATES: Final = {"software": math.inf, "discrete": 2e12}
"""The work a second of a kind of device before any is measured. No system resets a software device."""
_FIRST_RATE: Final = 3e11  # of any other kind
_FASTER: Final = 1.25  # the most by which one measurement raises the rate
_WORK_OF_BYTE: Final = 8  # GPUs do some ten products and sums in the time in which they move a byte


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

    @property
    def work(self) -> int:
        """A measure of how long it takes, in products and sums."""
        return self.operations + _WORK_OF_BYTE * self.moved_bytes


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
    def work(self) -> int:
        return sum(dispatch.work for dispatch in self.dispatches)

    def parts(self, most_work: float) -> Iterator[tuple[native.RawDispatch, ...]]:
        """Yield the dispatches, in order, in parts of at most `most_work`, or of one dispatch."""
        start, work = 0, 0
        for end, dispatch in enumerate(self.dispatches if self.work > most_work else ()):
            work += dispatch.work
            if work > most_work and end > start:
                yield self.raw[start:end]
                start, work = end, dispatch.work
        yield self.raw[start:]

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

    def __init__(
        self, device: wgpu.GPUDevice, buffer: Buffer, num_bytes: int, submission: int, on_end: Callable[[int], None]
    ) -> None:
        """Start the transfer. `on_end` is called with `submission` once the device has executed that."""
        self._device = device
        self.submission = submission
        self._on_end = on_end
        self._label = buffer.label
        with device_errors(f"{self._label} can't be read"):
            self._mapping = native.Mapping(device, buffer, num_bytes)

    @property
    def is_ready(self) -> bool:
        """True if `take` would return or raise without blocking."""
        if not self._mapping.is_ready:
            native.poll(self._device)
        return self._mapping.is_ready

    def take(self) -> bytes:
        """Wait and return the bytes, once; the buffer is then free. Raises DeviceError if they can't be read."""
        try:
            wait_for_mapping(self._device, self._mapping, self.submission)
            self._on_end(self.submission)
            return self._mapping.take()
        except DeviceError as error:
            raise DeviceError(f"{self._label} can't be read: {error}") from error


class Pace:
    """How much work a device does in a second, by what was measured: systems reset a GPU that is busy for too long."""

    def __init__(self, kind: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rate = _FIRST_RATES.get(kind, _FIRST_RATE)
        self._begun: deque[tuple[int, float, int]] = deque(maxlen=64)  # submissions, when they began, and their work
        self._last_end = -math.inf

    @property
    def most_work(self) -> float:
        """The work of one submission that ends in `_LONGEST_SUBMIT`."""
        return self._rate * _LONGEST_SUBMIT

    def begin(self, submission: int, work: int) -> None:
        self._begun.append((submission, self._clock(), work))

    def end(self, submission: int) -> None:
        """Take note that all submissions up to this one have ended by now. At once for one that was noted before."""
        start, done = math.inf, 0
        while self._begun and self._begun[0][0] <= submission:
            _, begun, work = self._begun.popleft()
            start, done = min(start, begun), done + work
        if done and self._rate < math.inf:
            now = self._clock()
            self._rate = min(done / max(now - max(start, self._last_end), 1e-9), _FASTER * self._rate)
            self._last_end = now


class Recorder:
    """Submits plans (lists of kernel dispatches) to one device, waits for them, and starts downloads."""

    def __init__(self, device: Device) -> None:
        self._device = device.wgpu_device
        self._pace = Pace(device.info.kind)

    def submit(self, plan: Plan | None = None, copies: Sequence[BufferCopy] = ()) -> int:
        """Submit dispatches, then copies, after all uploads; return an index for `wait`. Raises DeviceError.

        A plan that would keep the device busy for long is submitted in parts.
        """
        with device_errors("a step can't be submitted"):
            *before, last = ((),) if plan is None else plan.parts(self._pace.most_work)
            for part in before:
                native.submit(self._device, self._encode(part))
            submission = native.submit(self._device, self._encode(last, copies))
        if plan is not None:
            self._pace.begin(submission, plan.work)
        return submission

    def _encode(
        self, dispatches: Sequence[native.RawDispatch], copies: Sequence[BufferCopy] = ()
    ) -> wgpu.GPUCommandBuffer:
        encoder = self._device.create_command_encoder()
        if dispatches:
            compute_pass = encoder.begin_compute_pass()
            native.record(compute_pass, dispatches)
            compute_pass.end()
        for copy in copies:
            encoder.copy_buffer_to_buffer(
                copy.source, copy.source_offset, copy.target, copy.target_offset, copy.num_bytes
            )
        return encoder.finish()

    def wait(self, submission: int) -> None:
        """Block until the device has executed `submission` and all earlier ones."""
        native.wait(self._device, submission)
        self._pace.end(submission)

    def download(self, buffer: Buffer, num_bytes: int, submission: int) -> ReadBack:
        """Start a transfer after `submission`. Submit nothing that uses the buffer before `ReadBack.take` returns."""
        return ReadBack(self._device, buffer, num_bytes, submission, self._pace.end)
