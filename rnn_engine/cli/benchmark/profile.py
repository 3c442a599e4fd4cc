"""Where the time of a step goes: on the device kernel by kernel, on the host part by part."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rnn_engine.forward import GpuRunner
from rnn_engine.gpu import Dispatch, time_dispatches
from rnn_engine.types import TokenRun, run_step


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A part of a step, such as "key" or "head", over all layers.

    Bytes are those of matrices and states, operations the products and sums of matrices.
    """

    part: str
    kernel: str
    dispatches: int
    seconds: float
    moved_bytes: int
    operations: int

    @property
    def bytes_per_second(self) -> float:
        return self.moved_bytes / self.seconds if self.seconds else 0.0

    @property
    def operations_per_second(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The median times of one kind of step, in seconds."""

    step: str
    kernels: tuple[KernelTime, ...]  # in the order in which they run first
    submit: float  # the host: encode the batch and the dispatches, hand them over
    wait: float  # the host waits, and decodes what comes back

    @property
    def device(self) -> float:
        """All kernels, one after the other."""
        return sum(kernel.seconds for kernel in self.kernels)


def profile_decode(runner: GpuRunner, slots: int, repeats: int) -> StepProfile:
    """Profile a step in which each of `slots` sequences advances by one token."""
    return _profile(runner, f"decode, {slots} slot(s)", [TokenRun(slot, [1], rows=1) for slot in range(slots)], repeats)


def profile_prefill(runner: GpuRunner, length: int, repeats: int) -> StepProfile:
    """Profile a step with as much of a prompt of `length` tokens as it takes."""
    count = min(length, runner.max_tokens)
    return _profile(runner, f"prefill, {count} tokens", [TokenRun(0, [1] * count, rows=1)], repeats)


def _profile(runner: GpuRunner, step: str, batch: Sequence[TokenRun], repeats: int) -> StepProfile:
    for run in batch:
        runner.write_state(run.slot, None)
    run_step(runner, batch)  # so that the kernels are compiled, and find a whole batch in the buffers
    submits, waits = zip(*(_time_on_host(runner, batch) for _ in range(repeats)), strict=True)
    plan = runner.plan(sum(len(run.tokens) for run in batch), len(batch), len(batch))
    seconds = time_dispatches(runner.device, plan, repeats)
    kernels = _by_part(plan.dispatches, seconds)
    return StepProfile(step, kernels, statistics.median(submits), statistics.median(waits))


def _time_on_host(runner: GpuRunner, batch: Sequence[TokenRun]) -> tuple[float, float]:
    begun = time.perf_counter()
    ticket = runner.submit(batch)
    submitted = time.perf_counter()
    runner.collect(ticket)
    return submitted - begun, time.perf_counter() - submitted


def _by_part(dispatches: Sequence[Dispatch], seconds: Sequence[float]) -> tuple[KernelTime, ...]:
    parts: defaultdict[tuple[str, str], list[tuple[Dispatch, float]]] = defaultdict(list)
    for dispatch, time_taken in zip(dispatches, seconds, strict=True):
        parts[_part(dispatch), dispatch.kernel.label].append((dispatch, time_taken))
    return tuple(
        KernelTime(
            part,
            kernel,
            len(timed),
            sum(time_taken for _, time_taken in timed),
            sum(dispatch.moved_bytes for dispatch, _ in timed),
            sum(dispatch.operations for dispatch, _ in timed),
        )
        for (part, kernel), timed in parts.items()
    )


def _part(dispatch: Dispatch) -> str:
    """Return what a dispatch computes, whichever layer it is of."""
    words = dispatch.label.split()
    return " ".join(words[2:] if words[0] == "layer" else words)
