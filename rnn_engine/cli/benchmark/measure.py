"""How long whole steps take, from the tokens to the candidates on the host.

What is not measured: sampling, text, HTTP.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from rnn_engine.types import ModelShape, Runner, TokenRun, run_step

_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What was measured; a figure means nothing without it."""

    model: str
    shape: ModelShape
    device: str
    weights: str
    repeats: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the result."""

    phase: str  # decode or prefill
    slots: int  # sequences that run at the same time
    tokens: int  # of one sequence in one repetition
    median_ms: float  # of one repetition: a step at decode, a whole prompt at prefill
    tokens_per_second: float  # over all sequences


def measure_decode(runner: Runner, slots: int, repeats: int, clock: Callable[[], float]) -> Measurement:
    """Measure steps in which each of `slots` sequences advances by one token."""
    for slot in range(slots):
        runner.write_state(slot, None)
    batch = [TokenRun(slot, [_token(runner.shape, slot)], rows=1) for slot in range(slots)]
    median = median_seconds(lambda: run_step(runner, batch), repeats, clock)
    return Measurement("decode", slots, 1, 1e3 * median, slots / median)


def measure_prefill(runner: Runner, length: int, repeats: int, clock: Callable[[], float]) -> Measurement:
    """Measure one prompt of `length` tokens, in steps as large as the runner takes."""
    prompt = [_token(runner.shape, position) for position in range(length)]
    parts = [prompt[start : start + runner.max_tokens] for start in range(0, length, runner.max_tokens)]
    runs = [TokenRun(0, part) for part in parts[:-1]] + [TokenRun(0, parts[-1], rows=1)]

    def run_prompt() -> None:
        runner.write_state(0, None)
        for run in runs:
            run_step(runner, [run])

    median = median_seconds(run_prompt, repeats, clock)
    return Measurement("prefill", 1, length, 1e3 * median, length / median)


def _token(shape: ModelShape, position: int) -> int:
    """Return some token id; the speed does not depend on which."""
    return (position * 31 + 1) % shape.vocab_size


def median_seconds(work: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """Return the median time of `work`, in seconds, after a warm-up."""
    for _ in range(_WARM_UP):
        work()
    seconds = []
    for _ in range(repeats):
        begun = clock()
        work()
        seconds.append(clock() - begun)
    return statistics.median(seconds)
