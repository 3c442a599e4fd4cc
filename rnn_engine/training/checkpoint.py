"""Keep what a run of the tuner has reached in a safetensors file with a checksum, so that it can go on later."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from rnn_engine.backward import TrainingState
from rnn_engine.errors import StateError
from rnn_engine.files import atomic_file
from rnn_engine.training.tuner import Judged, Progress, RateTried
from rnn_engine_states.files.full import opened, read_safetensors

_FORMAT: Final = "rnn-engine-tuning"
_VERSION: Final = "1"
_STATES: Final = ("start", "best", "state", "first", "second")


def save_checkpoint(path: Path, progress: Progress, run: Mapping[str, object]) -> None:
    """Write a run's progress atomically, with JSON `run` that identifies it. Raises OSError."""
    training = progress.training
    states = (progress.start, progress.best, training.state, training.first, training.second)
    tensors: dict[str, NDArray[Any]] = {
        f"{part}.{name}": values for part, state in zip(_STATES, states, strict=True) for name, values in state.items()
    }
    tensors["updates"] = np.array(progress.updates, np.float64).reshape(-1, 3)
    tensors["tried"] = np.array([(trial.rate, trial.held_out_loss) for trial in progress.tried]).reshape(-1, 2)
    judged = [(each.step, each.held_out_loss, each.is_best) for each in progress.judged]
    tensors["judged"] = np.array(judged, np.float64).reshape(-1, 3)
    metadata = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "run": json.dumps(run, sort_keys=True),
        "step": str(progress.step),
        "num_updates": str(training.num_updates),
    }
    with atomic_file(path) as file:
        file.write(save(tensors, {**metadata, "crc32": _checksum(tensors, metadata)}))


def load_checkpoint(path: Path, run: Mapping[str, object]) -> Progress:
    """Read the progress of the same `run`. Raises StateError if the file is damaged or of another run."""
    with opened(path) as data:
        file = read_safetensors(data)
        metadata = dict(file.metadata)
        checksum = metadata.pop("crc32", None)
        if metadata.get("format") != _FORMAT or metadata.get("format_version") != _VERSION:
            raise StateError(
                f"{path.name}: expected a checkpoint of rnn-engine tune-state or tune-lora, of version {_VERSION}"
            )
        tensors = {name: np.array(file.read(name)) for name in file.tensors}
    if checksum != _checksum(tensors, metadata):
        raise StateError(f"{path.name}: damaged: its content does not match its checksum")
    _check_run(path, json.loads(metadata["run"]), run)
    start, best, state, first, second = (
        {name.removeprefix(f"{part}."): values for name, values in tensors.items() if name.startswith(f"{part}.")}
        for part in _STATES
    )
    return Progress(
        start,
        TrainingState(state, first, second, int(metadata["num_updates"])),
        best,
        int(metadata["step"]),
        [RateTried(rate, loss) for rate, loss in tensors["tried"].tolist()],
        [(loss, rate, norm) for loss, rate, norm in tensors["updates"].tolist()],
        [Judged(int(step), loss, bool(is_best)) for step, loss, is_best in tensors["judged"].tolist()],
    )


def _check_run(path: Path, found: Mapping[str, object], expected: Mapping[str, object]) -> None:
    written: Mapping[str, object] = json.loads(json.dumps(expected))
    for name in dict.fromkeys((*written, *found)):
        if found.get(name) != written.get(name):
            raise StateError(
                f"{path.name}: belongs to a run with {name} {found.get(name)!r}; this one has {written.get(name)!r}"
            )


def _checksum(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    checksum = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        checksum = zlib.crc32(f"{name} {array.dtype} {list(array.shape)}".encode(), checksum)
        checksum = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, checksum)
    return f"{checksum:08x}"
