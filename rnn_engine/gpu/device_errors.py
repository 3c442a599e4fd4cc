"""Turns what wgpu raises into the project's own errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import wgpu

from rnn_engine.errors import DeviceError


def is_lost(device: wgpu.GPUDevice) -> bool:
    """Whether a device was reset or taken away. Ask before calls for which wgpu-native ends the process then."""
    try:
        device.create_buffer(size=16, usage=wgpu.BufferUsage.COPY_DST).destroy()
    except wgpu.GPUError:
        return True
    return False


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Raise whatever wgpu raises inside as a DeviceError that says `what` failed."""
    try:
        yield
    except (wgpu.GPUError, RuntimeError) as error:
        raise DeviceError(f"{what}: {error}") from error
