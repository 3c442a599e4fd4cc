"""A small model on the device with its matmuls, in the form that the search for kernels takes."""

from __future__ import annotations

from dataclasses import replace

from rnn_engine.forward import GpuRunner
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.variants import StreamVariant
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.gpu import Device
from rnn_engine.types import Model
from rnn_engine.versions.table import VERSIONS
from tests.support.gpu import open_checked


def load_with_matmuls(
    model: Model,
    *,
    max_tokens: int = 64,
    kind: str = "software",
    weights: str = "f16",
    normed: StreamVariant | None = None,
    device: Device | None = None,
) -> tuple[GpuRunner, MatMulKernels]:
    """Return a runner of 2 slots, and its matmuls, on `device`, by default the first one of this machine.

    With `normed`, a step of one token has as few dispatches as on hardware, and this kernel norms its inputs itself.
    """
    opened, tuning = open_checked(kind)
    device = device or opened
    if normed is not None:
        tuning = replace(tuning, normed=(normed,), adapter_loads=2, joins_formats=True, blocks=())
    limits = StepLimits(num_slots=2, max_tokens=max_tokens, max_rows=2, num_candidates=8)
    choice = WeightChoice.parse(weights)
    matmuls = MatMulKernels(device.kernels, tuning, limits, activations=choice.activations)
    runner = GpuRunner(
        model,
        VERSIONS.get(model.shape.version).load_layers,
        device,
        device.allocate(),
        matmuls,
        format_of=choice.of(model.shape),
        limits=limits,
        progress=lambda *_: None,
    )
    return runner, matmuls
