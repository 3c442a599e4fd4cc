"""How fast each version runs with each weight format, measured in turns."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Final

from rnn_engine.cli.benchmark import measure_decode, measure_prefill
from rnn_engine.forward import GpuRunner
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.types import ModelShape
from tests.support.models import deep_embedded, random_model, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6
from tools.models.measure import load_on_device

LENGTH: Final = 64  # tokens of a prompt
SLOTS: Final = 8
_ROUNDS: Final = 9
_REPEATS: Final = 3
_FORMATS: Final = ("f16", "f32", "int8", "int4")


def speed_shapes() -> list[ModelShape]:
    """Return shapes of 4 layers and width 256."""
    sizes = {"layers": 4, "width": 256, "ffn": 1024, "vocab": 2048}
    v7 = tiny_shape(layers=4, width=256, head_size=64, ffn=1024, vocab=2048)
    return [
        tiny_v4(**sizes),
        *(tiny_v5(version, **sizes, head_size=64) for version in ("v5.1", "v5.2")),
        tiny_v6(**sizes, head_size=64),
        v7,
        deep_embedded(v7),
    ]


def speed_rows() -> list[list[str]]:
    """Return version, weights, and tokens per second with their ratio to f16 of the same round, for each phase."""
    rows = []
    for shape in speed_shapes():
        formats = tuple(WEIGHT_FORMATS) if shape.version == "v7" else _FORMATS
        found = _measure_formats(shape, formats)
        for weights in formats:
            cells = [shape.version, weights]
            for phase, speeds in enumerate(zip(*found[weights], strict=True)):
                ratios = [speed / one[phase] for speed, one in zip(speeds, found["f16"], strict=True)]
                cells += [f"{statistics.median(speeds):.0f}", f"{statistics.median(ratios):.2f}"]
            rows.append(cells)
    return rows


def _measure_formats(shape: ModelShape, formats: tuple[str, ...]) -> dict[str, list[tuple[float, ...]]]:
    """Return the tokens per second of each format in each round, all formats taking turns."""
    model = random_model(shape, seed=1)
    with ExitStack() as opened:
        runners = {weights: load_on_device(model, weights) for weights in formats}
        for runner in runners.values():
            opened.callback(runner.close)
        return {
            weights: list(speeds)
            for weights, speeds in zip(
                formats,
                zip(*([_speeds(runner) for runner in runners.values()] for _ in range(_ROUNDS)), strict=True),
                strict=True,
            )
        }


def _speeds(runner: GpuRunner) -> tuple[float, ...]:
    """Return the tokens per second of decode with one slot and with several, and of prefill."""
    decode = (measure_decode(runner, slots, _REPEATS, time.perf_counter) for slots in (1, SLOTS))
    prefill = measure_prefill(runner, LENGTH, _REPEATS, time.perf_counter)
    return (*(each.tokens_per_second for each in decode), prefill.tokens_per_second)
