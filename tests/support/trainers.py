"""Trainers on any device."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from rnn_engine.backward import Optimizer
from rnn_engine.backward.cpu_trainer import CpuTrainer
from rnn_engine.types import Model
from rnn_engine.versions.table import VERSIONS


def make_cpu_trainer(
    model: Model,
    *,
    optimizer: Optimizer,
    trains_shifts: bool,
    max_documents: int,
    max_tokens: int,
    dtype: DTypeLike = np.float32,
) -> CpuTrainer:
    version = VERSIONS.get(model.shape.version)
    assert version.run_backward is not None
    return CpuTrainer(
        model,
        version.run_layers,
        version.run_backward,
        optimizer=optimizer,
        trains_shifts=trains_shifts,
        max_documents=max_documents,
        max_tokens=max_tokens,
        dtype=dtype,
    )
