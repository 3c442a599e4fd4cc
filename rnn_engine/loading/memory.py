"""Compute the device memory that a model will need, choose settings with which it fits, and describe model files."""

from __future__ import annotations

import bisect
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TypeAlias

import psutil

from rnn_engine.bounds import AUTO, AUTO_FORMATS, STORED
from rnn_engine.errors import DeviceError, DeviceMemoryError, InvalidRequestError, TokenizerError
from rnn_engine.forward.onnx_graph import has_onnxruntime
from rnn_engine.forward.unread import UnreadModel
from rnn_engine.forward.weight_choice import WeightChoice, has_kept_blocks
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.gpu import DeviceInfo, SizingDevice, allocated_on, list_devices
from rnn_engine.loading.runner import RunnerSize, measure_runner
from rnn_engine.model import ModelFile
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.files.reading import is_time_state

Measure: TypeAlias = Callable[[str, RunnerSize], int]
"""A function from a weight format and a runner's size to the bytes of device memory that the runner takes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The weight format for a model on a device, and the bytes that spare slots (for cached states) may take there."""

    weights: str
    spare_bytes: int


def plan_memory(
    model: ModelFile, device: str, size: RunnerSize, *, weights: str | None, device_memory: int | None = None
) -> MemoryPlan:
    """Choose a weight format for a model on a device, and the bytes for spare slots, so that all fits into its memory.

    `weights` is kept if it is a format; None selects `usual_weights`, and `AUTO` the best format that fits. `device` is
    as `load_runner` has it; for "cpu" see `cpu_weights`. `device_memory` is the device's number of bytes, for devices
    whose memory can't be found out; if given, it is always used. The bytes of this process's other models there are
    subtracted from it.

    Raises DeviceMemoryError if the model does not fit; the message says what would. Raises InvalidRequestError for
    `AUTO` on a device of unknown memory, and for weights that the device can't have. Raises DeviceError as
    `load_runner` does.
    """
    if device == "cpu":
        check_cpu_weights(weights)
        return MemoryPlan(cpu_weights(model, weights), size.spare_bytes)
    usual = usual_weights(model)
    weights = usual if weights is None else weights
    like = SizingDevice.like(device)
    available = free_memory(like.info, device_memory)
    if available is None:
        check_unknown_memory(weights, like.info)
        return MemoryPlan(weights, size.spare_bytes)
    choices = (usual, *AUTO_FORMATS[1:])
    measure, without = measure_on(like, model), replace(size, spare_bytes=0)
    for name in choices if weights == AUTO else (weights,):
        if (needed := measure(name, without)) <= available:
            break
    else:
        fitting = [each for each in choices if measure(each, without) <= available]
        slots = bisect.bisect_left(  # the greatest number with which it fits, or 0
            range(1, size.num_slots + 1),
            True,
            key=lambda count: measure(name, replace(without, num_slots=count)) > available,
        )
        ways = [*(f"--weights {each}" for each in fitting), *([f"--slots {slots}"] if slots else [])]
        raise DeviceMemoryError(
            f"the model needs {in_words(needed)} with weights {name} and "
            f"{'1 slot' if size.num_slots == 1 else f'{size.num_slots} slots'}, {in_words(needed - available)} more "
            f"than the {in_words(available)} that {like.info.name} has free; "
            f"{'it fits with ' + ' or '.join(ways) if ways else 'expected a smaller model'}"
        )
    spare_bytes = min(size.spare_bytes, available - needed)
    excess = measure(name, replace(size, spare_bytes=spare_bytes)) - available
    return MemoryPlan(name, max(0, spare_bytes - max(0, excess)))  # a slot takes a little more than its state


def check_unknown_memory(weights: str, device: DeviceInfo) -> None:
    """Raise InvalidRequestError if `weights` are those that fit a device's memory, which is unknown; else log that."""
    if weights == AUTO:
        message = f"--weights auto needs --device-memory, since the memory of {device.name} is unknown"
        raise InvalidRequestError("weights", weights, "a format, or auto with --device-memory", message)
    _log.info("the memory of %s is unknown, so it is not checked if the model fits", device.name)


def cpu_has(weights: str | None, *, has_blocks: bool = True) -> bool:
    """Return True if the device "cpu" accepts `weights`; formats of blocks need onnxruntime, and `has_blocks`."""
    if weights in (None, AUTO, "f32", STORED):
        return True
    return has_blocks and has_onnxruntime() and WeightChoice.parse(str(weights)).formats["att"] not in ("f16", "bf16")


def check_cpu_weights(weights: str | None, *, has_blocks: bool = True) -> None:
    """Raise InvalidRequestError unless the device "cpu" accepts `weights`; see `cpu_has`."""
    if cpu_has(weights, has_blocks=has_blocks):
        return
    allowed = (
        "auto, f32, stored or a format of 8 or 4 bits" if has_blocks and has_onnxruntime() else "auto, f32 or stored"
    )
    more = "" if has_onnxruntime() or not has_blocks else "; pip install 'rnn-engine[cpu]' adds those of 8 and 4 bits"
    message = f"the device cpu has no weights {weights!r}; expected {allowed}{more}"
    raise InvalidRequestError("weights", weights, f"{allowed} on the device cpu", message)


def cpu_weights(model: ModelFile, weights: str | None) -> str:
    """Return the weights that the device "cpu" has for the user's choice, with the type of their activations."""
    usual = usual_weights(model)
    weights = usual if weights in (None, AUTO) else str(weights)
    if not has_onnxruntime() or weights == "f32" or (weights in (STORED, "f16") and usual != STORED):
        return "f32"
    return weights if "activations=" in weights else f"{weights},activations=int8"


def usual_weights(model: ModelFile) -> str:
    """Return the format if the user chose none: `STORED` for a quantised file without LoRAs, else f16."""
    return STORED if has_kept_blocks(model) and not model.loras else AUTO_FORMATS[0]


def measure_on(device: SizingDevice, model: ModelFile) -> Measure:
    """Return a caching function from format and size to the bytes of a runner on a device like `device`."""
    unread = UnreadModel(model.shape, model.tensors)
    return cache(lambda weights, size: measure_runner(unread, device, size, weights=weights).total)


def find_memory(device: DeviceInfo) -> int | None:
    """Return a device's free memory, if known: for software and integrated devices that of the computer."""
    return psutil.virtual_memory().available if device.kind in ("software", "integrated") else None


def free_memory(device: DeviceInfo, device_memory: int | None) -> int | None:
    """Return the bytes that a model may take on a device of `device_memory` bytes; None if they are unknown."""
    return find_memory(device) if device_memory is None else max(0, device_memory - allocated_on(device))


def in_words(num_bytes: int) -> str:
    """Format a number of bytes for messages, such as 3.21 GB or 4.5 MB."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that a model takes with one weight format. States that are kept take what room is left."""

    weights: str
    num_bytes: int  # without kept states
    fits: bool | None  # None = the device's memory is unknown
    weight_bytes: int
    slot_bytes: int  # of the states of all slots
    kept_bytes: int  # of the states that the cache keeps, unless it is set otherwise
    buffer_bytes: int  # of one step
    most_bytes: int  # with kept states, as a server allocates them if there is room


@dataclass(frozen=True, slots=True)
class DeviceNeeds:
    """The bytes of memory that a model takes on one device with each weight format, and the device's free memory."""

    device: str
    available_bytes: int | None  # None = unknown
    needs: Sequence[Need]
    refusal: str | None = None  # why the device can't run the model; there are no `needs` then


@dataclass(frozen=True, slots=True)
class Inspection:
    """A description of a model file: version, sizes, tensors, tokenizer, and the memory it needs on each device."""

    file: str
    file_bytes: int
    version: str
    sizes: Mapping[str, int]
    parameters: int
    tensors: Mapping[str, int]  # element type, or name of the blocks -> number of tensors
    has_tuned_state: bool
    tokenizer: str
    state_bytes: int  # of one sequence
    slots: int  # for which `devices` are computed
    devices: Sequence[DeviceNeeds]


def inspect_model(
    model: ModelFile, tokenizer: str = "auto", num_slots: int = 8, device_memory: int | None = None
) -> Inspection:
    """Describe an open model and the memory that it needs on each device of this computer.

    Each device lists the model's usual weight format first. Without a device, the needs are those on one with the
    lowest limits that WebGPU allows. `tokenizer` is as for `load_tokenizer`. `device_memory` is a device's number of
    bytes, for devices that do not report it; if given, it is used for all devices.
    """
    own = [name for name in model.tensors if not is_time_state(name)]
    return Inspection(
        file=str(model.path),
        file_bytes=model.num_bytes,
        version=model.shape.version,
        sizes=dict(model.shape.sizes),
        parameters=sum(prod(model.tensors[name].shape) for name in own),
        tensors=dict(Counter(info.block_type or info.dtype.name for info in model.tensors.values()).most_common()),
        has_tuned_state=len(own) < len(model.tensors),
        tokenizer=_name_tokenizer(tokenizer, model),
        state_bytes=model.shape.state_bytes,
        slots=num_slots,
        devices=[_device_needs(model, device, num_slots, device_memory) for device in _devices()],
    )


def _devices() -> Iterator[SizingDevice]:
    devices = list_devices()
    if not devices:
        yield SizingDevice.smallest()
    for info in devices:
        yield SizingDevice.like(str(info.index))


def _name_tokenizer(choice: str, model: ModelFile) -> str:
    try:
        return load_tokenizer(choice, model.path, model.shape.vocab_size).name
    except TokenizerError as error:
        return f"none that fits: {error}"


def _device_needs(model: ModelFile, device: SizingDevice, num_slots: int, device_memory: int | None) -> DeviceNeeds:
    info = device.info
    name = f"{info.name} ({info.kind}, {info.backend})"
    available = free_memory(device.info, device_memory)
    unread, size = UnreadModel(model.shape, model.tensors), RunnerSize(num_slots=num_slots)
    usual = usual_weights(model)
    try:
        counted = {
            weights: measure_runner(unread, device, size, weights=weights) for weights in (usual, *WEIGHT_FORMATS)
        }
        with_kept = replace(size, spare_bytes=CacheConfig().device_capacity)
        most = measure_runner(unread, device, with_kept, weights=usual)
    except DeviceError as error:
        return DeviceNeeds(name, available, (), str(error))
    kept, more_buffers = most.states - counted[usual].states, most.buffers - counted[usual].buffers
    needs = [
        Need(
            weights=weights,
            num_bytes=count.total,
            fits=None if available is None else count.total <= available,
            weight_bytes=count.weights,
            slot_bytes=count.states,
            kept_bytes=kept,
            buffer_bytes=count.buffers + more_buffers,
            most_bytes=count.total + kept + more_buffers,
        )
        for weights, count in counted.items()
    ]
    return DeviceNeeds(name, available, needs)
