"""What a model file holds, and what it takes to run it, from its header alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rnn_engine.errors import DeviceError, TokenizerError
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.gpu import DeviceInfo, SizingDevice, list_devices
from rnn_engine.loading.memory import find_memory, measure_on, usual_weights
from rnn_engine.loading.runner import RunnerSize
from rnn_engine.model import OpenModel
from rnn_engine.tokenizer import load_tokenizer
from states.files.tuned import is_time_state


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that a model takes of a device with one weight format, and whether the device has as many."""

    weights: str
    num_bytes: int
    fits: bool | None  # None = nothing tells the device's memory


@dataclass(frozen=True, slots=True)
class DeviceNeeds:
    """What a model takes of a device, for each weight format."""

    device: str
    available_bytes: int | None  # None = nothing tells
    needs: Sequence[Need]
    refusal: str | None = None  # why the device can't run the model; there are no `needs` then


@dataclass(frozen=True, slots=True)
class Inspection:
    """The facts of a model file."""

    file: str
    file_bytes: int
    version: str
    sizes: Mapping[str, int]
    parameters: int
    tensors: Mapping[str, int]  # element type, or name of the blocks -> how many tensors have it
    has_tuned_state: bool
    tokenizer: str
    state_bytes: int  # of one sequence
    slots: int  # for which `devices` are told
    devices: Sequence[DeviceNeeds]


def inspect_model(
    model: OpenModel, tokenizer: str = "auto", num_slots: int = 8, device_memory: int | None = None
) -> Inspection:
    """Return the facts of an open model, with what it takes of each device of this computer, first as usually loaded.

    Where there is no device, of one with the least limits that WebGPU allows. `device_memory` is how many bytes a
    device has, where that can't be found out.
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


def _name_tokenizer(choice: str, model: OpenModel) -> str:
    try:
        return load_tokenizer(choice, model.path, model.shape.vocab_size).name
    except TokenizerError as error:
        return f"none that fits: {error}"


def _device_needs(model: OpenModel, device: SizingDevice, num_slots: int, device_memory: int | None) -> DeviceNeeds:
    name = _title(device.info)
    available = find_memory(device.info) if device_memory is None else device_memory
    measure, size = measure_on(device, model), RunnerSize(num_slots=num_slots)
    try:
        counted = {weights: measure(weights, size) for weights in (usual_weights(model), *WEIGHT_FORMATS)}
    except DeviceError as error:
        return DeviceNeeds(name, available, (), str(error))
    needs = [
        Need(weights, count, None if available is None else count <= available) for weights, count in counted.items()
    ]
    return DeviceNeeds(name, available, needs)


def _title(info: DeviceInfo) -> str:
    return f"{info.name} ({info.kind}, {info.backend})"
