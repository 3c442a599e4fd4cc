"""Puts a model on a device."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from rnn_engine.errors import DeviceMemoryError
from rnn_engine.forward import CpuRunner, GpuRunner, Progress, WeightChoice
from rnn_engine.forward.state import StateLayout
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.tuning import tuning_for
from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.gpu import measure_subgroup_size, open_device
from rnn_engine.types import Model, Runner
from rnn_engine.versions.table import VERSIONS, VersionTable

_LOGITS_BYTES = 64 << 20  # for the logits of one step's rows, where the user does not say
_MAX_SPARE_SLOTS = 64

logger = logging.getLogger(__name__)


def _no_progress(what: str, done: int, total: int) -> None:
    """Default progress callback; ignores its arguments."""


def load_runner(
    model: Model,
    device: str = "auto",
    *,
    weights: str | FormatOf = "f16",
    num_slots: int = 8,
    spare_bytes: int = 0,
    max_tokens: int | None = None,
    max_rows: int | None = None,
    num_candidates: int = 128,
    checked: bool = False,
    warm_up: bool = False,
    progress: Progress = _no_progress,
    versions: VersionTable = VERSIONS,
) -> Runner:
    """Put `model` on `device`: "auto", an index, a part of a name, or "cpu" for numpy. The model may then be closed.

    `weights` says how matrices are kept on a GPU, as `WeightChoice.parse` reads it, or gives the format of each.
    After the `num_slots` come spare slots, which the runner counts too: as many as `spare_bytes` and the device have
    room for, at most 64. `max_tokens` bounds a step's tokens, `max_rows` its logit rows. `checked` shaders test every
    index. `warm_up` runs a step of every kind first, since drivers compile a kernel when it is first run.
    Models on one device share it, and free what is theirs when they are closed. May be called from any thread.
    Raises DeviceError where there is no such device, DeviceMemoryError where it has no room; nothing is held then.
    """
    version = versions.get(model.shape.version)
    vocab_size = model.shape.vocab_size
    num_candidates = min(num_candidates, vocab_size)
    if max_rows is None:
        max_rows = max(num_slots, min(64, _LOGITS_BYTES // (4 * vocab_size)))
    format_of = WeightChoice.parse(weights) if isinstance(weights, str) else weights
    if device == "cpu":
        return CpuRunner(
            model,
            version.run_layers,
            num_slots=num_slots + _spare_slots(spare_bytes, model.shape.state_bytes),
            max_tokens=max_tokens or 64,
            max_rows=max_rows,
            num_candidates=num_candidates,
        )

    def load(spare_bytes: int) -> GpuRunner:
        opened = open_device(device, checked=checked)
        tuning = tuning_for(opened.info, can_broadcast=measure_subgroup_size(opened) >= 8)
        slot_bytes = 4 * StateLayout(model.shape).stride  # in each layer's buffer
        room = opened.max_binding_bytes // slot_bytes - num_slots
        limits = StepLimits(
            num_slots + _spare_slots(spare_bytes, model.shape.num_layers * slot_bytes, room),
            max(num_slots, max_tokens or tuning.step_tokens(model.shape)),
            max_rows,
            num_candidates,
        )
        with ExitStack() as undo:
            memory = opened.allocate()
            undo.callback(memory.close)
            runner = GpuRunner(
                model,
                version.load_layers,
                opened,
                memory,
                tuning,
                format_of=format_of,
                limits=limits,
                progress=progress,
            )
            if warm_up:
                counts = {min(variant.tokens, limits.max_tokens) for variant in tuning.matmuls} | {limits.max_tokens}
                runner.warm_up(counts, progress)
            undo.pop_all()
        return runner

    try:
        return load(spare_bytes)
    except DeviceMemoryError as error:
        if spare_bytes == 0:
            raise
        logger.warning("loading again without spare slots: %s", error)
    return load(0)


def _spare_slots(num_bytes: int, slot_bytes: int, room: int = _MAX_SPARE_SLOTS) -> int:
    return max(min(num_bytes // slot_bytes, room, _MAX_SPARE_SLOTS), 0)
