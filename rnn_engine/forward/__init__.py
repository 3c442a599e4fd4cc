"""The forward pass: a model's weights on a device, and the runner that steps them."""

from __future__ import annotations

from rnn_engine.forward.cpu import CpuRunner
from rnn_engine.forward.gpu_runner import GpuRunner
from rnn_engine.forward.packing import WeightFormat
from rnn_engine.forward.scratch import StepLimits
from rnn_engine.forward.tuning import tuning_for
from rnn_engine.forward.v7 import Progress
from rnn_engine.gpu import Device, Kernels, measure_subgroup_size
from rnn_engine.types import Model, Runner

__all__ = ["CpuRunner", "GpuRunner", "Progress", "WeightFormat", "load_runner"]

_LOGITS_BYTES = 64 << 20  # for the logits of one step's rows, where the user does not say


def _no_progress(what: str, done: int, total: int) -> None:
    """Says nothing."""


def load_runner(
    model: Model,
    device: str = "auto",
    *,
    weights: WeightFormat = "f16",
    num_slots: int = 8,
    max_tokens: int | None = None,
    max_rows: int | None = None,
    num_candidates: int = 128,
    checked: bool = False,
    warm_up: bool = False,
    progress: Progress = _no_progress,
) -> Runner:
    """Put `model` on `device`: "auto", an index, a part of a name, or "cpu" for numpy. The model may then be closed.

    `max_tokens` bounds a step's tokens, `max_rows` its logit rows. `checked` shaders test every index.
    `warm_up` runs a step of every kind first, since drivers compile a kernel when it is first run.
    Raises DeviceError where there is no such device, DeviceMemoryError where it has no room.
    """
    vocab_size = model.shape.vocab_size
    num_candidates = min(num_candidates, vocab_size)
    if max_rows is None:
        max_rows = max(num_slots, min(64, _LOGITS_BYTES // (4 * vocab_size)))
    if device == "cpu":
        return CpuRunner(
            model, num_slots=num_slots, max_tokens=max_tokens or 64, max_rows=max_rows, num_candidates=num_candidates
        )
    opened = Device.open(device, checked=checked)
    kernels = Kernels(opened)
    tuning = tuning_for(opened.info, can_broadcast=measure_subgroup_size(opened, kernels) >= 8)
    limits = StepLimits(
        num_slots, max(num_slots, max_tokens or tuning.step_tokens(model.shape)), max_rows, num_candidates
    )
    runner = GpuRunner(model, opened, kernels, tuning, weights=weights, limits=limits, progress=progress)
    if warm_up:
        counts = {min(variant.tokens, limits.max_tokens) for variant in tuning.products} | {limits.max_tokens}
        runner.warm_up(counts, progress)
    return runner
