"""Initial states: what sequences may start from instead of the fill values, by name, and which is the default.

Knows states and names; knows neither requests nor the cache. `root_of` gives the cache's key for one.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine.types import ModelShape, State
from states.checks import check_state
from states.files.confine import confined_path
from states.files.reading import LoadedState, ReadPth, StateForm, read_state
from states.files.tuned import Layout

NO_INITIAL_STATE = "none"
"""The root of sequences that start from the fill values."""


@dataclass(frozen=True, slots=True, eq=False)
class InitialState:
    """A state under a name. Its arrays are read-only: sequences and the cache share them."""

    name: str
    id: uuid.UUID
    form: StateForm
    source: str  # the file's name, or where else it came from
    created: float  # Unix time, seconds
    digest: str  # of the values: equal for equal states, whatever their names
    state: State

    @property
    def has_shifts(self) -> bool:
        """Whether the token shifts are set too; a tuned state leaves them at zero."""
        return any(bool(array.any()) for name, array in self.state.items() if name.endswith("_shift"))


def root_of(initial: InitialState | None) -> str:
    """The cache's root for sequences that start from `initial`: a name bound to another state is another root."""
    return NO_INITIAL_STATE if initial is None else initial.digest


def make_initial_state(loaded: LoadedState, shape: ModelShape, name: str, source: str) -> InitialState:
    """A checked state with a name and an id, which is the file's own or follows from name and values."""
    state = {name: array.copy() for name, array in check_state(loaded.state, shape, source).items()}
    for array in state.values():
        array.setflags(write=False)
    digest = _digest(state)
    key = loaded.id or uuid.uuid5(uuid.NAMESPACE_OID, f"{name}\n{digest}")
    return InitialState(name, key, loaded.form, source, time.time(), digest, state)


class InitialStates:
    """The registry. Thread-safe; what it hands out is immutable and outlives its removal."""

    def __init__(self, shape: ModelShape, model: str, read_pth: ReadPth, folder: Path | None = None) -> None:
        """`model` is the fingerprint that full-state files must have; `folder` is where requests may read from."""
        self._shape = shape
        self._model = model
        self._read_pth = read_pth
        self._folder = folder
        self._lock = threading.Lock()
        self._by_name: dict[str, InitialState] = {}
        self._default: InitialState | None = None

    def add_file(
        self, path: Path, name: str | None = None, *, default: bool = False, layout: Layout | None = None
    ) -> InitialState:
        """Read a file that the operator names. `name` defaults to the file's own, then to the path's stem."""
        loaded = read_state(path, self._shape, self._model, self._read_pth, layout)
        return self.add(loaded, name or loaded.name or path.stem, path.name, default=default)

    def add_requested(self, requested: str, name: str | None = None, *, default: bool = False) -> InitialState:
        """Read a file that a request names: only inside the configured folder."""
        return self.add_file(confined_path(self._folder, requested, "state.path"), name, default=default)

    def add_upload(self, data: bytes, name: str, *, default: bool = False) -> InitialState:
        """Take the content of a file of any form."""
        with tempfile.TemporaryDirectory(prefix="rnn-engine-") as folder:
            path = Path(folder) / "upload"
            path.write_bytes(data)
            loaded = read_state(path, self._shape, self._model, self._read_pth)
        return self.add(loaded, name, "upload", default=default)

    def add(self, loaded: LoadedState, name: str, source: str, *, default: bool = False) -> InitialState:
        """Enter a state under a name and id that are free. The default is the latest one that was entered as such."""
        if not name or name == NO_INITIAL_STATE:
            raise InvalidRequestError("state.name", name, f"a name that is not empty and not {NO_INITIAL_STATE!r}")
        initial = make_initial_state(loaded, self._shape, name, source)
        with self._lock:
            taken = next((known for known in self._by_name.values() if _clash(known, initial)), None)
            if taken is not None:
                raise InvalidRequestError(
                    "state.name", name, f"a name and an id that are free; {taken.name!r} ({taken.id}) is there already"
                )
            self._by_name[name] = initial
            if default or loaded.default:
                self._default = initial
        return initial

    def get(self, name_or_id: str) -> InitialState:
        """The state of this name or, else, this id. Raises NotFoundError, which lists the names."""
        with self._lock:
            return self._find(name_or_id)

    def entries(self) -> tuple[InitialState, ...]:
        """All of them, in the order in which they were added."""
        with self._lock:
            return tuple(self._by_name.values())

    @property
    def default(self) -> InitialState | None:
        """What a request that names none starts from; None means the fill values."""
        with self._lock:
            return self._default

    def remove(self, name_or_id: str) -> InitialState:
        """Take one out. Sequences that run from it go on. Raises NotFoundError."""
        with self._lock:
            initial = self._find(name_or_id)
            del self._by_name[initial.name]
            if self._default is initial:
                self._default = None
            return initial

    def _find(self, name_or_id: str) -> InitialState:
        known = self._by_name.get(name_or_id)
        if known is None:
            known = next((other for other in self._by_name.values() if str(other.id) == name_or_id.lower()), None)
        if known is None:
            names = ", ".join(sorted(self._by_name)) or "none"
            raise NotFoundError(f"initial state {name_or_id!r} does not exist; there are: {names}")
        return known


def _clash(known: InitialState, new: InitialState) -> bool:
    return known.name == new.name or known.id == new.id


def _digest(state: State) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(state[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
