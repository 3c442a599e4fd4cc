"""Choose the faster of WebGPU's software driver and numpy to run a model on a computer without a GPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, Final

import psutil
from numpy.typing import NDArray

from rnn_engine.files import read_record, write_record
from rnn_engine.forward.onnx_graph import has_onnxruntime
from rnn_engine.forward.weight_choice import has_kept_blocks
from rnn_engine.gpu import list_devices
from rnn_engine.loading.runner import load_runner
from rnn_engine.model import ModelFile
from rnn_engine.quantised.rows import Matrix
from rnn_engine.types import Model, ModelShape, Runner, TokenRun, run_step

_PROMPT, _GENERATED = 500, 100  # tokens of a typical request
_SMALL_BYTES: Final = 64 << 20  # of weights in f32; compiling the kernels takes longer than an answer of such a model
_LAYERS: Final = (1, 3)  # of the two partial models that are measured
_REPEATS: Final = 3
_RECORD: Final = "device.json"  # in the folder of cached states

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Speed:
    """A model's measured speed for a single client: prompt tokens and generated tokens per second."""

    prompt: float
    answer: float

    @property
    def request_seconds(self) -> float:
        """The seconds that a typical request takes: 500 prompt tokens and 100 generated ones."""
        return _PROMPT / self.prompt + _GENERATED / self.answer


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The device on which to run a model, as `load_runner` takes it, and why, in words for the log."""

    device: str
    reason: str


def choose_device(
    model: ModelFile, device: str, weights: Callable[[str], str], num_slots: int, cache_folder: Path | None = None
) -> DeviceChoice:
    """Choose "cpu", which means numpy, if WebGPU finds no GPU and numpy is faster or starts sooner; else `device`.

    Only for "auto". If every WebGPU device is a software driver, a small model takes numpy, which needs no kernels to
    be compiled. Of a larger one, the first layers are run with both to measure them, which takes about a second. If
    there is no room for the weights in f32, numpy is not tried. `weights` returns the format of the weights on the
    software device.

    States are continued only with the weights with which they were made, and numpy has other ones. So the choice is
    recorded in `cache_folder`, the folder of cached states. Later loads of the same model with that folder choose the
    same without measuring.
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
    record = None if cache_folder is None else cache_folder / _RECORD
    if record is not None and (recalled := _recall(record, model)) is not None:
        return recalled
    if num_bytes <= _SMALL_BYTES:
        choice = DeviceChoice("cpu", "no GPU was found, and a model this small starts at once with numpy")
    else:
        choice = _measure(model, weights, num_slots, devices[0].name)
    if record is not None:
        try:
            write_record(record, {"model": model.fingerprint, "device": choice.device, "reason": choice.reason})
        except OSError as error:
            _log.warning("the choice of the device can't be recorded, so the next load measures again: %s", error)
    return choice


def _recall(record: Path, model: ModelFile) -> DeviceChoice | None:
    kept = read_record(record) or {}
    if kept.get("model") != model.fingerprint:
        return None
    reason = f"as {record} says, so that kept states can be used; when it was written, {kept['reason']}"
    return DeviceChoice(kept["device"], reason)


def _measure(model: ModelFile, weights: Callable[[str], str], num_slots: int, software_name: str) -> DeviceChoice:
    """Measure `model` on the software driver and with numpy, and choose one."""
    software = measure_speed(model, partial(load_runner, weights=weights("auto"), num_slots=num_slots))
    numpy = measure_speed(model, partial(load_runner, device="cpu", weights=weights("cpu"), num_slots=num_slots))
    times = software.request_seconds / numpy.request_seconds
    found = "no GPU was found, and its first layers ran"
    if times > 1:
        return DeviceChoice("cpu", f"{found} {times:.1f} times as fast with numpy as on {software_name}")
    return DeviceChoice("auto", f"{found} {1 / times:.1f} times as fast on {software_name} as with numpy")


def measure_speed(
    model: Model, load: Callable[[Model], Runner], clock: Callable[[], float] = time.perf_counter
) -> Speed:
    """Estimate a model's speed on a device by running only its first layers.

    Runs one layer and then three, and extrapolates to all layers; a model of at most three layers is run whole. `load`
    loads a model and returns its runner; `clock` returns seconds.
    """
    num_layers = model.shape.num_layers
    if num_layers <= _LAYERS[1]:
        return Speed(*(1 / seconds for seconds in _seconds_a_token(model, load, clock)))
    few, more = (_seconds_a_token(FirstLayers(model, layers), load, clock) for layers in _LAYERS)
    layers = [max(0.0, most - least) / (_LAYERS[1] - _LAYERS[0]) for least, most in zip(few, more, strict=True)]
    rest = num_layers - _LAYERS[0]
    return Speed(*(1 / (least + rest * layer) for least, layer in zip(few, layers, strict=True)))


def _seconds_a_token(model: Model, load: Callable[[Model], Runner], clock: Callable[[], float]) -> tuple[float, float]:
    """Load `model`, run a few steps, and return the least seconds per prompt token and per generated token."""
    with closing(load(model)) as runner:
        count = min(runner.max_tokens, 64)
        prompt, answer = [TokenRun(0, [0] * count, rows=1)], [TokenRun(0, [0], rows=1)]
        return _least_seconds(runner, prompt, clock) / count, _least_seconds(runner, answer, clock)


def _least_seconds(runner: Runner, batch: list[TokenRun], clock: Callable[[], float]) -> float:
    run_step(runner, batch)  # drivers compile a kernel when it is first run
    seconds = []
    for _ in range(_REPEATS):
        begun = clock()
        run_step(runner, batch)
        seconds.append(clock() - begun)
    return max(min(seconds), 1e-9)


@dataclass(frozen=True)
class FirstLayers:
    """A partial model for speed measurements: the embedding, first `num_layers` layers and head of another model."""

    model: Model
    num_layers: int

    @cached_property
    def shape(self) -> ModelShape:
        return replace(self.model.shape, num_layers=self.num_layers)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self.model.names if self.has(name))

    def has(self, name: str) -> bool:
        layer = self.model.shape.place_of(name).layer
        return self.model.has(name) and (layer is None or layer < self.num_layers)

    def tensor(self, name: str) -> NDArray[Any]:
        return self.model.tensor(name)

    def block_type(self, name: str) -> str | None:
        return self.model.block_type(name)

    def matrix(self, name: str, *, transposed: bool = False) -> Matrix:
        return self.model.matrix(name, transposed=transposed)
