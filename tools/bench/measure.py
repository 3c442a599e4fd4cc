"""Measure a step's parts on the device, its time on the host, and the device's bandwidth to compare with.

All times are medians over repetitions after a warm-up, in seconds of the host's clock.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from contextlib import closing

from rnn_engine.cli.bench import median_seconds
from rnn_engine.forward import GpuRunner
from rnn_engine.gpu import BufferCopy, Device, Dispatch, Plan, Recorder
from rnn_engine.types import TokenRun, run_step

_WARM_UP = 2
_COPY_BYTES = 64 << 20


def copy_bandwidth(device: Device, repeats: int) -> float:
    """Return the bytes a second of a large copy on the device, those read and those written both counted."""
    with closing(device.allocate()) as memory:
        source, target = (memory.create_buffer(label, _COPY_BYTES) for label in ("copy from", "copy to"))
        recorder = Recorder(device)

        def copy() -> None:
            recorder.wait(recorder.submit(copies=[BufferCopy(source, 0, target, 0, _COPY_BYTES)]))

        return 2 * _COPY_BYTES / median_seconds(copy, repeats, time.perf_counter)


def host_seconds(runner: GpuRunner, num_tokens: int, num_runs: int, repeats: int) -> float:
    """Return the time to encode and submit one step's plan, without waiting for the device."""
    plan = runner.plan(num_tokens, num_runs, num_runs)
    recorder = Recorder(runner.device)
    seconds = []
    for _ in range(_WARM_UP + repeats):
        begun = time.perf_counter()
        submission = recorder.submit(plan)
        seconds.append(time.perf_counter() - begun)
        recorder.wait(submission)
    return statistics.median(seconds[_WARM_UP:])


def seconds_by_part(runner: GpuRunner, batch: list[TokenRun], repeats: int) -> dict[str, tuple[int, float]]:
    """Return, for each part of a step such as "key" or "head", the number of its dispatches and their time together."""
    run_step(runner, batch)  # so that the parts find a whole batch in the buffers
    plan = runner.plan(sum(len(run.tokens) for run in batch), len(batch), sum(run.rows for run in batch))
    parts: defaultdict[str, list[Dispatch]] = defaultdict(list)
    for dispatch in plan.dispatches:
        words = dispatch.label.split()
        parts[" ".join(words[2:] if words[0] == "layer" else words)].append(dispatch)
    recorder = Recorder(runner.device)
    results = {}
    for part, dispatches in parts.items():
        part_plan = Plan(tuple(dispatches))

        def run(part_plan: Plan = part_plan) -> None:
            recorder.wait(recorder.submit(part_plan))

        results[part] = len(dispatches), median_seconds(run, repeats, time.perf_counter)
    return results
