"""Runners without a GPU."""

from __future__ import annotations

from rnn_engine.forward.cpu import CpuRunner
from rnn_engine.reference import Weights
from rnn_engine.types import Model
from rnn_engine.versions.table import VERSIONS


def make_cpu_runner(model: Model, *, num_slots: int, max_tokens: int, max_rows: int, num_candidates: int) -> CpuRunner:
    return CpuRunner(
        Weights.read(model),
        VERSIONS.get(model.shape.version).run_layers,
        num_slots=num_slots,
        max_tokens=max_tokens,
        max_rows=max_rows,
        num_candidates=num_candidates,
    )
