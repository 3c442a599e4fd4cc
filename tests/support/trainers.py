"""Trainers on any device."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
from numpy.typing import DTypeLike

from rnn_engine.backward import Optimizer
from rnn_engine.backward.context import LoadBackward
from rnn_engine.backward.cpu_trainer import CpuTrainer
from rnn_engine.backward.gpu_trainer import GpuTrainer
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.pairs import Pairs
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.weight_choice import parse_weights
from rnn_engine.types import Model
from rnn_engine.versions.table import VERSIONS
from tests.support.gpu import ROW_ROOM, TOKEN_ROOM, open_checked


def make_cpu_trainer(
    model: Model,
    *,
    optimizer: Optimizer,
    trains_shifts: bool,
    max_documents: int,
    max_tokens: int,
    dtype: DTypeLike = np.float32,
    pairs: Pairs | None = None,
    state_rate: float | None = None,
) -> CpuTrainer:
    version = VERSIONS.get(model.shape.version)
    assert version.run_backward is not None
    return CpuTrainer(
        model,
        version.run_layers,
        version.run_backward,
        optimizer=optimizer,
        trains_shifts=trains_shifts,
        state_rate=state_rate,
        pairs=pairs,
        max_documents=max_documents,
        max_tokens=max_tokens,
        dtype=dtype,
    )


def make_gpu_trainer(
    model: Model,
    *,
    optimizer: Optimizer,
    trains_shifts: bool,
    max_documents: int,
    max_tokens: int,
    max_rows: int = 7,
    kind: str = "software",
    weights: str = "f32",
    load_backward: LoadBackward | None = None,
    max_binding_bytes: int | None = None,
    pairs: Pairs | None = None,
    state_rate: float | None = None,
) -> GpuTrainer:
    """Return a trainer with checked shaders. `load_backward` replaces that of the model's version.

    Its buffers have more room than the limits allow, unless they have a bound of their own.
    """
    load_backward = load_backward or VERSIONS.get(model.shape.version).load_backward
    assert load_backward is not None
    device, tuning = open_checked(kind)
    memory = device.allocate()
    if max_binding_bytes is not None:
        memory.max_binding_bytes = max_binding_bytes
    format_of, _ = parse_weights(weights, model.shape)
    room = (max_tokens, max_rows)
    if max_binding_bytes is None:
        room = (max(max_tokens, TOKEN_ROOM), max(max_rows, ROW_ROOM))
    limits = StepLimits(max_documents, *room, num_candidates=1)
    with ExitStack() as undo:
        undo.callback(memory.close)
        trainer = GpuTrainer(
            model,
            load_backward,
            device,
            memory,
            MatMulKernels(device.kernels, tuning, limits, pairs=pairs),
            format_of=format_of,
            limits=limits,
            optimizer=optimizer,
            trains_shifts=trains_shifts,
            state_rate=state_rate,
            progress=lambda what, done, total: None,
        )
        undo.pop_all()
    trainer.max_tokens, trainer.max_rows = max_tokens, max_rows
    return trainer
