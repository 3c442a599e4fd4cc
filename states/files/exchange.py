"""A model's states in and out of files, wherever they come from: the operator, a folder, an upload or a request."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from rnn_engine.types import F32, ModelShape
from states.files.confine import confined_path
from states.files.container import file_parts
from states.files.full import Origin, SavedState, full_state_parts, save_full_state
from states.files.prefab import Prefab, encode_prefab, state_from_rows
from states.files.reading import LAYOUT_KEY, LoadedState, read_state
from states.files.tuned import Layout, tuned_from_state
from states.frozen import FrozenState, freeze_state
from states.payload import Payload

ExportForm: TypeAlias = Literal["full", "tuned", "prefab"]

_KIND = "named"
_UNKNOWN = ""  # what a named state once started from


class StateFiles:
    """The files of one model's states. Thread-safe."""

    def __init__(self, shape: ModelShape, model: str, folder: Path | None = None) -> None:
        """`model` is the fingerprint that full-state files must have; `folder` is where requests may read from."""
        self.shape = shape
        self.folder = folder
        self._model = model

    def read(self, path: Path, layout: Layout | None = None) -> LoadedState:
        """Read a state from a file of any form. Raises StateError where it is damaged or does not fit the model."""
        return read_state(path, self.shape, self._model, layout)

    def read_requested(self, requested: str) -> LoadedState:
        """Read a state from a file that a request names, inside the folder alone."""
        return self.read(confined_path(self.folder, requested, "state.path"))

    def read_rows(self, values: Sequence[float] | F32, dims: Sequence[int]) -> LoadedState:
        """Read a state from an array in ai00's order; `dims` are [D, N + 2, L, 1]."""
        return LoadedState("inline", state_from_rows(values, dims, self.shape, "state"))

    def freeze(self, loaded: LoadedState, source: str) -> FrozenState:
        """Return what was loaded as a state to start from.

        Raises StateError, which begins with `source`, where it does not fit the model.
        """
        return freeze_state(
            loaded.state,
            self.shape,
            source,
            logits=loaded.logits,
            num_tokens=loaded.num_tokens,
            last_tokens=loaded.last_tokens,
        )

    def save(self, path: Path, name: str, frozen: FrozenState) -> None:
        """Write a full-state file; a crash leaves the old one or the new one."""
        save_full_state(path, self._saved(name, frozen), self.shape.version)

    def export(self, form: ExportForm, name: str, key: uuid.UUID, frozen: FrozenState) -> Iterator[bytes | memoryview]:
        """Return the bytes of a file of this form, piece by piece. The form of tuned states leaves out the shifts."""
        match form:
            case "full":
                return full_state_parts(self._saved(name, frozen), self.shape.version)
            case "tuned":
                layout: Layout = "key_value"
                return file_parts(tuned_from_state(frozen.state, self.shape, layout), {LAYOUT_KEY: layout})
            case "prefab":
                return iter([encode_prefab(Prefab(name, key, False, frozen.state), self.shape)])

    def _saved(self, name: str, frozen: FrozenState) -> SavedState:
        origin = Origin(self._model, _UNKNOWN, frozen.num_tokens or 0, _KIND, name, frozen.last_tokens)
        return SavedState(origin, None, Payload(frozen.state, frozen.logits))
