"""Choose the faster of WebGPU's software driver and numpy to run a model on a computer without a GPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any, Final

import psutil
from numpy.typing import NDArray

from rnn_engine.gpu import list_devices
from rnn_engine.loading.runner import load_runner
from rnn_engine.model import OpenModel
from rnn_engine.quantised import Blocks
from rnn_engine.types import Model, ModelShape, Runner, TokenRun, run_step

_PROMPT, _GENERATED = 500, 100  # tokens of a typical request
_TIMES_FASTER: Final = 2  # by which numpy must be faster to be chosen
_LAYERS: Final = (1, 3)  # of the two partial models that are measured
_REPEATS: Final = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Speed:
    """The prefill and decode speed for a single client: `prompt` and `answer` tokens per second."""

    prompt: float
    answer: float

    @property
    def request_seconds(self) -> float:
        """The seconds that a typical request takes: 500 prompt tokens and 100 generated ones."""
        return _PROMPT / self.prompt + _GENERATED / self.answer


def choose_device(model: OpenModel, device: str, weights: str, num_slots: int) -> str:
    """Return "cpu", which means numpy, if that is more than twice as fast as the software driver; else `device`.

    Only for "auto", and only if every WebGPU device is a software driver, the first layers of `model` are run with both
    to measure them, which takes about a second; the result is logged. If there is no room for the weights in f32, numpy
    is not tried. `weights` is the format of the weights on the software device.
    """
    if device != "auto":
        return device
    if not (devices := list_devices()) or not all(each.is_software for each in devices):
        return device
    if sum(4 * prod(info.shape) for info in model.tensors.values()) > psutil.virtual_memory().available // 2:
        return device  # numpy computes in f32, for which there is no room
    software = measure_speed(model, partial(load_runner, weights=weights, num_slots=num_slots))
    numpy = measure_speed(model, partial(load_runner, device="cpu", num_slots=num_slots))
    chosen = "cpu" if software.request_seconds > _TIMES_FASTER * numpy.request_seconds else "auto"
    _log.info(
        "no GPU was found. One client's prompts and answers run at about %.0f and %.0f tokens/s on %s, at %.0f and"
        " %.0f with numpy: --device %s is used",
        software.prompt, software.answer, devices[0].name, numpy.prompt, numpy.answer, chosen,
    )  # fmt: skip
    return chosen


def measure_speed(
    model: Model, load: Callable[[Model], Runner], clock: Callable[[], float] = time.perf_counter
) -> Speed:
    """Estimate the speed of `model` by running its first layers alone.

    Runs one layer and then three, and extrapolates to all layers; a model of at most three layers is run whole. `load`
    loads a model and returns its runner; `clock` returns seconds.
    """
    num_layers = model.shape.num_layers
    if num_layers <= _LAYERS[1]:
        return Speed(*(1 / seconds for seconds in _seconds_a_token(model, load, clock)))
    few, more = (_seconds_a_token(FirstLayers(model, layers), load, clock) for layers in _LAYERS)
    return Speed(*(1 / _extrapolate(*pair, num_layers) for pair in zip(few, more, strict=True)))


def _extrapolate(few: float, more: float, num_layers: int) -> float:
    layer = max(0.0, more - few) / (_LAYERS[1] - _LAYERS[0])
    return few + (num_layers - _LAYERS[0]) * layer


def _seconds_a_token(model: Model, load: Callable[[Model], Runner], clock: Callable[[], float]) -> tuple[float, float]:
    """Load `model` and return its shortest measured seconds per prompt token and per generated token."""
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
    """A model made of the embedding, the first `num_layers` layers and the head of another model."""

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

    def blocks(self, name: str) -> Blocks | None:
        return self.model.blocks(name)
