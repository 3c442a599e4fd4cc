"""Load a trainer of initial states onto a device."""

from __future__ import annotations

from rnn_engine.backward import Optimizer, Trainer
from rnn_engine.backward.cpu_trainer import CpuTrainer
from rnn_engine.errors import DeviceError, ModelError
from rnn_engine.forward import Progress
from rnn_engine.model import OpenModel
from rnn_engine.versions.table import VERSIONS, VersionTable

DEFAULT_OPTIMIZER = Optimizer()


def _no_progress(_what: str, _done: int, _total: int) -> None:
    """Default progress callback; ignores its arguments."""


def load_trainer(
    model: OpenModel,
    device: str = "auto",
    *,
    weights: str | None = None,  # noqa: ARG001
    max_tokens: int = 1024,
    max_documents: int = 16,
    train_shifts: bool = False,
    optimizer: Optimizer = DEFAULT_OPTIMIZER,
    progress: Progress = _no_progress,  # noqa: ARG001
    versions: VersionTable = VERSIONS,
) -> Trainer:
    """Load `model` onto a device and return a trainer of its initial state. The model may then be closed.

    Only the processor, with numpy, can train so far: `device` is "auto" or "cpu". Raises ModelError for a version of
    RWKV whose initial states can't be trained, and DeviceError for other devices.
    """
    version = versions.get(model.shape.version)
    if version.run_backward is None:
        raise ModelError(f"initial states of {version.title} can't be trained; expected RWKV-5, 6 or 7")
    if device not in ("auto", "cpu"):
        raise DeviceError(f"the device {device!r} can't train; expected auto or cpu")
    return CpuTrainer(
        model,
        version.run_layers,
        version.run_backward,
        optimizer=optimizer,
        trains_shifts=train_shifts,
        max_documents=max_documents,
        max_tokens=max_tokens,
    )
