"""Runners without a GPU."""

from __future__ import annotations

from rnn_engine.forward.cpu import CpuRunner
from rnn_engine.reference import Weights
from rnn_engine.types import NO_LORAS, LoraRoom, Model
from rnn_engine.versions.table import VERSIONS


def make_cpu_runner(
    model: Model, *, num_slots: int, max_tokens: int, max_rows: int, num_candidates: int, lora_room: LoraRoom = NO_LORAS
) -> CpuRunner:
    return CpuRunner(
        Weights.read(model),
        VERSIONS.get(model.shape.version).run_layers,
        num_slots=num_slots,
        max_tokens=max_tokens,
        max_rows=max_rows,
        num_candidates=num_candidates,
        lora_room=lora_room,
    )
