"""Compute the device memory that a model will need, choose settings with which it fits, and describe model files."""

from __future__ import annotations

import bisect
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Final, TypeAlias

import psutil

from rnn_engine.bounds import AUTO, AUTO_FORMATS, STORED
from rnn_engine.errors import DeviceError, DeviceMemoryError, InvalidRequestError, TokenizerError
from rnn_engine.forward.onnx_graph import has_onnxruntime
from rnn_engine.forward.weight_choice import WeightChoice, has_kept_blocks
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.gpu import DeviceInfo, SizingDevice, allocated_on, list_devices
from rnn_engine.interface import DevicePart
from rnn_engine.loading.placement import cut, devices_of, is_placement, with_layers
from rnn_engine.loading.runner import RunnerSize, measure_runner
from rnn_engine.model import ModelFile, ModelPart
from rnn_engine.model.model_file import UnreadModel
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.files.reading import is_time_state

_UNKNOWN: Final = 1 << 40  # bytes, as which the memory of a device counts if it is unknown

Measure: TypeAlias = Callable[[str, RunnerSize], int]
"""A function from a weight format and a runner's size to the bytes of device memory that the runner takes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The weight format for a model on a device, and the bytes that spare slots (for cached states) may take there."""

    weights: str
    spare_bytes: int
    device: str  # as asked for; of several devices with the number of layers of each


def plan_memory(
    model: ModelFile, device: str, size: RunnerSize, *, weights: str | None, device_memory: int | None = None
) -> MemoryPlan:
    """Choose a weight format for a model on a device, and the bytes for spare slots, so that all fits into its memory.

    If `device` names several without numbers of layers, these are chosen, too: see `_divide`.

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
        return MemoryPlan(cpu_weights(model, weights), size.spare_bytes, device)
    usual = usual_weights(model)
    weights = usual if weights is None else weights
    if is_placement(device):
        without = replace(size, spare_bytes=0)
        name, placement = _find_placement(model, device, without, weights=weights, device_memory=device_memory)
        spare_bytes = size.spare_bytes
        for each in placement.parts:
            if each.place.available is not None:
                left = each.place.available - each.num_bytes
                spare_bytes = min(spare_bytes, left * model.shape.num_layers // each.part.shape.num_layers)
        return MemoryPlan(name, spare_bytes, placement.device)
    like = SizingDevice.like(device)
    available = free_memory(like.info, device_memory)
    if available is None:
        check_unknown_memory(weights, like.info)
        return MemoryPlan(weights, size.spare_bytes, device)
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
        ways = [f"--weights {each} ({in_words(measure(each, without))})" for each in fitting]
        ways += [f"--slots {slots}"] if slots else []
        ways += _placements_that_fit(model, like.info, without, weights=name, device_memory=device_memory)
        raise DeviceMemoryError(
            f"the model needs {in_words(needed)} with weights {name} and "
            f"{'1 slot' if size.num_slots == 1 else f'{size.num_slots} slots'}, {in_words(needed - available)} more "
            f"than the {in_words(available)} that {like.info.name} has free; "
            f"{'it fits with ' + ' or '.join(ways) if ways else 'expected a smaller model'}"
        )
    spare_bytes = min(size.spare_bytes, available - needed)
    excess = measure(name, replace(size, spare_bytes=spare_bytes)) - available
    return MemoryPlan(name, max(0, spare_bytes - max(0, excess)), device)  # a slot takes more than its state


@dataclass(frozen=True, slots=True)
class _Place:
    """A device for a part of a model, and the memory that it has for it."""

    device: str
    like: SizingDevice | None  # None for "cpu", whose memory is not counted
    available: int | None  # None = unknown

    @classmethod
    def of(cls, device: str, device_memory: int | None) -> _Place:
        if device == "cpu":
            return cls(device, None, None)
        like = SizingDevice.like(device)
        return cls(device, like, free_memory(like.info, device_memory))

    def measure(self, part: ModelPart, size: RunnerSize, weights: str) -> int:
        return 0 if self.like is None else measure_runner(part, self.like, size, weights=weights).total


@dataclass(frozen=True, slots=True)
class _PlacedPart:
    """A part of a model on a device, and the bytes that it needs there."""

    place: _Place
    part: ModelPart
    num_bytes: int

    @property
    def fits(self) -> bool:
        return self.place.available is None or self.num_bytes <= self.place.available

    def __str__(self) -> str:
        of = "" if self.place.available is None else f" of {in_words(self.place.available)}"
        return f"{in_words(self.num_bytes)} on device {self.place.device}{of}"


@dataclass(frozen=True, slots=True)
class _Placement:
    """A model on several devices."""

    device: str  # with the number of layers of each device
    parts: Sequence[_PlacedPart]

    @classmethod
    def plan(cls, model: ModelFile, device: str, size: RunnerSize, weights: str, memory: int | None) -> _Placement:
        """Place `model` as `device` says, with as many layers for each device as fit if it has no numbers."""
        unread = UnreadModel(model.shape, model.tensors)
        places = [_Place.of(each, memory) for each in devices_of(device)]
        placed = device if ":" in device else _divide(unread, places, size, weights)
        pairs = zip(places, cut(unread, placed), strict=True)
        return cls(placed, [_PlacedPart(place, part, place.measure(part, size, weights)) for place, (part, _) in pairs])

    @property
    def fits(self) -> bool:
        return all(each.fits for each in self.parts)

    def __str__(self) -> str:
        return " and ".join(str(each) for each in self.parts if each.place.like is not None)


def _find_placement(
    model: ModelFile, device: str, size: RunnerSize, *, weights: str, device_memory: int | None
) -> tuple[str, _Placement]:
    """Choose the format and the numbers of layers for a model on several devices; see `plan_memory`."""
    for name in (usual_weights(model), *AUTO_FORMATS[1:]) if weights == AUTO else (weights,):
        placement = _Placement.plan(model, device, size, name, device_memory)
        if placement.fits:
            return name, placement
    raise DeviceMemoryError(
        f"the model does not fit on --device {placement.device} with weights {name}: it needs {placement};"
        f" expected weights of fewer bits, other numbers of layers, or cpu as one more device"
    )


def _divide(model: UnreadModel, places: Sequence[_Place], size: RunnerSize, weights: str) -> str:
    """Return the placement that fills the same share of each device's memory, or before "cpu" as much as there is.

    Devices of unknown memory count as equally large. Raises InvalidRequestError if that of one beside "cpu" is unknown.
    """
    devices, num_layers = [place.device for place in places], model.shape.num_layers
    if num_layers < len(places):
        raise InvalidRequestError("device", ",".join(devices), f"at most {num_layers} devices, one for each layer")
    fixed, of_layer = [], []
    for number, place in enumerate(places):
        ends = {"has_embedding": number == 0, "has_head": number == len(places) - 1}
        one, two = (place.measure(ModelPart(model, range(count), **ends), size, weights) for count in (1, 2))
        fixed.append(2 * one - two)
        of_layer.append(max(two - one, 1))

    def counts(share: float) -> list[int]:
        """Return how many layers each device takes if this share of its memory is filled, at least one each."""
        chosen, left = list[int](), num_layers
        for number, place in enumerate(places):
            most = left - (len(places) - 1 - number)
            if place.like is not None:
                room = share * (_UNKNOWN if place.available is None else place.available)
                most = max(1, min(int((room - fixed[number]) // of_layer[number]), most))
            chosen.append(most)
            left -= most
        return chosen

    share = 1.0
    if "cpu" in devices:
        for place in places:
            if place.like is not None and place.available is None:
                message = (
                    f"--device {','.join(devices)} needs --split or --device-memory,"
                    f" since the memory of {place.like.info.name} is unknown"
                )
                raise InvalidRequestError("device", ",".join(devices), "a number of layers for each device", message)
    else:  # the least share with which all layers have room
        least = 0.0
        for _ in range(50):
            middle = (least + share) / 2
            least, share = (least, middle) if sum(counts(middle)) >= num_layers else (middle, share)
    chosen = counts(share)
    chosen[-1] += num_layers - sum(chosen)
    return with_layers(devices, chosen)


def _placements_that_fit(
    model: ModelFile, device: DeviceInfo, size: RunnerSize, *, weights: str, device_memory: int | None
) -> Iterator[str]:
    """Yield the options with which a model that is too large for `device` fits, beside another or the processor."""
    others = [str(each.index) for each in list_devices() if each != device and each.kind == device.kind]
    for other in (*others[:1], "cpu"):
        with suppress(InvalidRequestError):
            placement = _Placement.plan(model, f"{device.index},{other}", size, weights, device_memory)
            if placement.fits:
                yield f"--device {placement.device} ({placement})"


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
    parts: Sequence[DevicePart]  # of the model in its usual format on several devices, if these are asked for


def inspect_model(
    model: ModelFile,
    tokenizer: str = "auto",
    num_slots: int = 8,
    device_memory: int | None = None,
    device: str = "auto",
) -> Inspection:
    """Describe an open model and the memory that it needs on each device of this computer.

    Each device lists the model's usual weight format first. Without a device, the needs are those on one with the
    lowest limits that WebGPU allows. `tokenizer` is as for `load_tokenizer`. `device_memory` is a device's number of
    bytes, for devices that do not report it; if given, it is used for all devices. If `device` names several, the
    layers on each are listed, too; raises as `plan_memory` does.
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
        devices=[_device_needs(model, each, num_slots, device_memory) for each in _devices()],
        parts=list(_device_parts(model, device, RunnerSize(num_slots), device_memory)) if is_placement(device) else [],
    )


def _device_parts(model: ModelFile, device: str, size: RunnerSize, device_memory: int | None) -> Iterator[DevicePart]:
    weights = usual_weights(model)
    _, placement = _find_placement(model, device, size, weights=weights, device_memory=device_memory)
    for each in placement.parts:
        layers, like = each.part.layers, each.place.like
        if like is None:
            yield DevicePart(each.place.device, layers.start, layers.stop - 1)
        else:
            yield DevicePart(like.info.name, layers.start, layers.stop - 1, each.num_bytes)


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
