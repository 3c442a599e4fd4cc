"""Read and write one model's state files, and restrict the files that a request may name to one folder.

filelock is not used for the lock of a folder: it is a package of 1.4 MB, and the lock is one call of the system.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError, is_inner_path
from rnn_engine.tensor_files.pth_file import write_pth
from rnn_engine.tensor_files.source import TensorEntry, TensorInfo
from rnn_engine.types import F32, NO_LORAS, LoraPairs, LoraRoom, ModelShape
from rnn_engine_states.files.full import Origin, SavedState, check_model, file_parts, full_state_file, write_file
from rnn_engine_states.files.prefab import Prefab, encode_prefab, state_from_rows
from rnn_engine_states.files.reading import LAYOUT_KEY, MODEL_KEY, Layout, LoadedState, read_state, tuned_from_state
from rnn_engine_states.frozen import FrozenState, Payload, freeze_state
from rnn_engine_states.tokens import TOKEN_BYTES

_OWN_FILE = re.compile(r"[0-9a-f-]{32,}\.state", re.IGNORECASE)
"""The names of files that the server writes: the ids of persistent states, and hashes of tokens for a cache in the same
folder.
"""


def confined_path(folder: Path | None, requested: str, field: str) -> Path:
    """Return the absolute path of the file `requested` inside `folder`, with symbolic links followed.

    `requested` is relative to `folder` or to the server's working directory. Raises InvalidRequestError, which names
    `field`, if the path leaves the folder or no folder is configured. Raises NotFoundError if there is no such file, or
    if it is a file of the server's named states or cache: a client that may use such a state gets it by its name, and
    must not learn from a file name what other clients have asked.
    """
    if folder is None:
        raise InvalidRequestError(
            field,
            requested,
            "the name or id of a state, since no folder of state files is configured (--state-folder or "
            "--state-file-folder)",
        )
    allowed = "a relative path inside the folder of state files"
    if not is_inner_path(requested):
        raise InvalidRequestError(field, requested, allowed)
    root = folder.resolve()
    try:
        target = next(
            (
                path
                for base in (root, Path.cwd())
                if (path := (base / requested).resolve()).is_relative_to(root) and path.is_file()
            ),
            (root / requested).resolve(),
        )
    except (OSError, RuntimeError) as error:  # a loop of links: which error depends on the version of Python
        raise InvalidRequestError(field, requested, allowed) from error
    if not target.is_relative_to(root):
        raise InvalidRequestError(field, requested, allowed)
    try:
        found = target.is_file()
    except OSError as error:  # a name that is too long
        raise InvalidRequestError(field, requested, allowed) from error
    if not found or _OWN_FILE.fullmatch(target.name):
        raise NotFoundError(f"{field}: no state file {requested!r} in the folder of state files")
    return target


# Locks that let only one process at a time use a folder: two would overwrite or delete each other's files.
#
# A lock is the operating system's, so it ends with the process, even if the process is killed.

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


CACHE_LOCK = "in-use.lock"
STATES_LOCK = "states-in-use.lock"
"""The names of the locks differ, so that one server may keep both in one folder."""

_LAST_READER = "4a47fbfa"
"""The last commit that reads folders of versions before 0.2.0, the first release."""

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}  # the last two on Windows


class OwnedFolder:
    """A folder that this process has locked against others. `release` or garbage collection unlocks it."""

    def __init__(self, path: Path, what: str, lock_name: str, former: Sequence[str] = ()) -> None:
        """Lock the folder at `path` against other processes, and create it if it is missing.

        Error messages call it `what`. Raises StateError if the folder can't be used or another process has locked it,
        and if a file in it has a name as one of the patterns `former`: versions that this one can't read had such
        files. `lock_name` is the lock file in it.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path / lock_name, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StateError(
                f"{what} {path}: {error.strerror}; expected a folder that the server can write to"
            ) from error
        self._close = weakref.finalize(self, os.close, descriptor)
        if (old := next(chain.from_iterable(map(path.glob, former)), None)) is not None:
            self._close()
            raise StateError(
                f"{what} {path}: a version before 0.2.0 has written {old.name}; start rnn-engine of the commit "
                f"{_LAST_READER} once with this folder, which takes over what is in it, or name another folder"
            )
        try:
            _lock(descriptor)
        except OSError as error:
            self._close()
            if error.errno in _HELD:
                raise StateError(
                    f"{what} {path}: another process uses it; expected a folder that no other process uses"
                ) from error
            raise StateError(
                f"{what} {path}: can't be locked: {error.strerror}; expected a folder that supports locks"
            ) from error

    def release(self) -> None:
        """Unlock the folder, so that another process can lock it. Idempotent."""
        self._close()


ExportForm: TypeAlias = Literal["full", "tuned", "pth", "prefab"]

_KIND = "named"
_UNKNOWN = ""  # what a named state started from


ReadLora: TypeAlias = Callable[[Path], tuple[str | None, LoraPairs] | None]
"""Reads a LoRA and the fingerprint of its model, if that is known; returns None for a file of another kind.

Raises StateError if the LoRA is damaged or does not fit the model.
"""


def find_no_lora(_path: Path) -> None:
    """Default `ReadLora`, for which no file has a LoRA."""


class StateFiles:
    """Reads and writes the state files of one model, in every file format. Thread-safe."""

    def __init__(
        self,
        shape: ModelShape,
        model: str,
        folder: Path | None = None,
        *,
        any_model: bool = False,
        lora_room: LoraRoom = NO_LORAS,
        read_lora: ReadLora = find_no_lora,
    ) -> None:
        """Read and write states of the model with this `shape` and fingerprint `model`.

        A file that names another model is refused unless `any_model` is true. `folder` has the files that requests may
        read; None if they may read none. A LoRA is read by `read_lora`, and refused if there is no room for it in
        `lora_room`.
        """
        self.shape = shape
        self.folder = folder
        self.model = model
        self.any_model = any_model
        self.lora_room = lora_room
        self._read_lora = read_lora

    def read(self, path: Path, layout: Layout | None = None, *, any_model: bool = False) -> LoadedState:
        """Read a state file in any supported format, or a LoRA. Raises StateError if it is damaged or does not fit.

        `layout` overrides the layout of a tuned state's matrices. With `any_model`, the file may name another model.
        """
        model = None if any_model or self.any_model else self.model
        if (found := self._read_lora(path)) is None:
            loaded = read_state(path, self.shape, model, layout)
        else:
            check_model(path.name, found[0], model)
            loaded = LoadedState("lora", self.shape.initial_state(), lora=found[1])
        if loaded.lora is not None and (misfit := self.lora_room.misfit(loaded.lora)) is not None:
            raise StateError(f"{path.name}: {misfit}")
        return loaded

    def read_requested(self, requested: str) -> LoadedState:
        """Read the file that a request names in the configured folder. Raises as `confined_path` and `read` do."""
        return self.read(confined_path(self.folder, requested, "state.path"))

    def read_rows(self, values: Sequence[float] | F32, dims: Sequence[int]) -> LoadedState:
        """Read a state from a prefab array of `dims` [D, R, L, 1]. Raises StateError if it does not fit the model."""
        return LoadedState("inline", state_from_rows(values, dims, self.shape, "state"))

    def freeze(self, loaded: LoadedState, source: str) -> FrozenState:
        """Return a loaded state as a `FrozenState`. Raises StateError, beginning with `source`, if it does not fit."""
        return freeze_state(
            loaded.state,
            self.shape,
            source,
            logits=loaded.logits,
            num_tokens=loaded.num_tokens,
            last_tokens=loaded.last_tokens,
            lora=loaded.lora,
        )

    def save(self, path: Path, name: str, frozen: FrozenState) -> None:
        """Write a state, called `name` in it, to a full-state file atomically."""
        write_file(path, *full_state_file(self._saved(name, frozen), self.shape.version))

    def export(self, form: ExportForm, name: str, key: uuid.UUID, frozen: FrozenState) -> Iterator[bytes | memoryview]:
        """Return the content of a state file in the format `form`, as an iterator over pieces of bytes.

        The formats are full state, tuned state (safetensors as ai00's `.st`, and BlinkDL's `pth`, both without the
        token shifts), and ai00's prefab. `name` and `key`, the state's name and id, are stored if the format has a
        place for them. Raises StateError if the format can't have the model's states.
        """
        if frozen.lora is not None and form != "full":
            raise StateError(f"{name}: a state with a LoRA can't be written as {form}; expected full")
        match form:
            case "full":
                return file_parts(*full_state_file(self._saved(name, frozen), self.shape.version))
            case "tuned":
                layout: Layout = "key_value"
                metadata = {LAYOUT_KEY: layout, MODEL_KEY: self.model}
                return file_parts(tuned_from_state(frozen.state, self.shape, layout), metadata)
            case "pth":
                return iter([_pth(tuned_from_state(frozen.state, self.shape, "value_key"))])
            case "prefab":
                return iter([encode_prefab(Prefab(name, key, False, frozen.state), self.shape)])

    def _saved(self, name: str, frozen: FrozenState) -> SavedState:
        num_tokens, path = frozen.num_tokens or 0, frozen.path
        if path is not None and len(path.tokens) != num_tokens * TOKEN_BYTES:
            path = None  # the state before it had taken in tokens, too
        root = _UNKNOWN if path is None else path.root
        origin = Origin(self.model, root, num_tokens, _KIND, name, frozen.last_tokens)
        return SavedState(
            origin, None if path is None else path.tokens, Payload(frozen.state, frozen.logits), frozen.lora
        )


def _pth(tensors: Mapping[str, F32]) -> bytes:
    file = BytesIO()
    write_pth(
        file,
        [
            TensorEntry(name, TensorInfo(array.shape, array.dtype), partial(np.asarray, array))
            for name, array in tensors.items()
        ],
    )
    return file.getvalue()
