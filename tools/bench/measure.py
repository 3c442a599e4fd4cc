"""Measure the host's time for a step."""

from __future__ import annotations

import statistics
import time

from rnn_engine.forward import GpuRunner
from rnn_engine.gpu import Recorder

_WARM_UP = 2


def host_seconds(runner: GpuRunner, num_tokens: int, num_runs: int, repeats: int) -> float:
    """Return the median seconds to encode and submit one step's plan, without waiting for the device."""
    plan = runner.plan(num_tokens, num_runs, num_runs)
    recorder = Recorder(runner.device)
    seconds = []
    for _ in range(_WARM_UP + repeats):
        begun = time.perf_counter()
        submission = recorder.submit(plan)
        seconds.append(time.perf_counter() - begun)
        recorder.wait(submission)
    return statistics.median(seconds[_WARM_UP:])
