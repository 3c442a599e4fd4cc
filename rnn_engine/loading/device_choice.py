"""Choose between WebGPU's devices and numpy for a model whose `--device` is "auto"."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import psutil

from rnn_engine.forward.onnx_graph import has_onnxruntime
from rnn_engine.forward.weight_choice import has_kept_blocks
from rnn_engine.gpu import list_devices
from rnn_engine.model import ModelFile


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The device on which to run a model, as `load_runner` takes it, and why, in words for the log."""

    device: str
    reason: str


def choose_device(model: ModelFile, device: str) -> DeviceChoice:
    """Choose "cpu", which means numpy, for "auto" if WebGPU finds no GPU; else `device`.

    Numpy was faster than a software driver wherever both were measured, and needs no kernels to be compiled. Where
    numpy has no room for the weights in f32, the software driver is chosen.
    """
    if device != "auto":
        return DeviceChoice(device, "as --device says")
    devices = list_devices()
    if not devices:
        return DeviceChoice("cpu", "WebGPU finds no device; on Linux, a Vulkan driver may be missing")
    if not all(each.is_software for each in devices):
        if len(devices) == 1:
            return DeviceChoice(device, "the only device that WebGPU finds")
        return DeviceChoice(device, f"the first of the fastest kind of the {len(devices)} devices that WebGPU finds")
    num_bytes = sum(4 * prod(info.shape) for info in model.tensors.values())
    keeps_blocks = has_onnxruntime() and has_kept_blocks(model)
    if num_bytes > psutil.virtual_memory().available // 2 and not keeps_blocks:
        return DeviceChoice(device, "no GPU was found, and numpy has no room for the weights in f32")
    return DeviceChoice("cpu", "no GPU was found, and numpy is faster than a software driver")
