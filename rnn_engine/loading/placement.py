"""The devices on which a model runs, and its parts if it runs on several."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Final

import psutil

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.onnx_graph import has_onnxruntime
from rnn_engine.forward.weight_choice import has_kept_blocks
from rnn_engine.gpu import list_devices
from rnn_engine.model import ModelFile, ModelPart
from rnn_engine.types import Model

_DEVICES: Final = re.compile(r"(?:\d+|cpu)(?::\d+)?(?:,(?:\d+|cpu)(?::\d+)?)+")


def is_placement(device: str) -> bool:
    """Return True for a text that names several devices: indices or "cpu", each perhaps with a number of layers.

    "0,1" and "0:20,cpu:4" are such texts.
    """
    return _DEVICES.fullmatch(device) is not None


def devices_of(device: str) -> list[str]:
    """Return the devices in the text of a placement; the text itself if it names one device."""
    return [each.partition(":")[0] for each in device.split(",")] if is_placement(device) else [device]


def with_layers(devices: Sequence[str], counts: Sequence[int]) -> str:
    """Return the text of a placement of as many layers as `counts` on each of the devices."""
    return ",".join(f"{each}:{count}" for each, count in zip(devices, counts, strict=True))


def split_device(device: str, split: Sequence[int] | None, num_layers: int) -> str:
    """Return the text of the placement `device` with the numbers of layers in `split`, if it is given.

    Raises InvalidRequestError unless there is a number for each of several devices, and all add up to `num_layers`.
    """
    devices = devices_of(device)
    if split is None:
        return device
    if len(devices) < 2 or len(split) != len(devices) or min(split) < 1 or sum(split) != num_layers:
        allowed = (
            f"a number of layers for each of several devices, that add up to {num_layers}, such as"
            f" {num_layers - num_layers // 2},{num_layers // 2} with --device 0,1"
        )
        raise InvalidRequestError("split", ",".join(map(str, split)), allowed)
    return with_layers(devices, split)


def cut(model: Model, device: str) -> Iterator[tuple[ModelPart, str]]:
    """Yield the parts of a model that a placement makes, each with its device.

    Where the text has no numbers, each device gets as many layers as the others. Raises InvalidRequestError if the
    numbers don't add up to the model's layers.
    """
    num_layers, devices = model.shape.num_layers, devices_of(device)
    ends = [num_layers * place // len(devices) for place in range(len(devices) + 1)]
    even = [end - start for start, end in pairwise(ends)]
    counts = [int(each.partition(":")[2] or 0) for each in device.split(",")] if ":" in device else even
    if min(counts) < 1 or sum(counts) != num_layers:
        allowed = f"at most {num_layers} devices with 1 layer or more each, {num_layers} in all"
        raise InvalidRequestError("device", device, allowed)
    ends = list(accumulate(counts))
    for place, layers in enumerate(map(range, [0, *ends], ends)):
        is_last = place == len(devices) - 1
        yield ModelPart(model, layers, has_embedding=place == 0, has_head=is_last), devices[place]


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The device on which to run a model, as `load_runner` takes it, and why, in words for the log."""

    device: str
    reason: str


def choose_device(model: ModelFile, device: str) -> DeviceChoice:
    """Choose "cpu", which means numpy, for "auto" if WebGPU finds no GPU; else `device`.

    Numpy was faster than a software driver wherever both were measured, and needs no kernels to be compiled. If
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
