"""Reading a state from a file of any form that users have.

    safetensors, ours        a full state with shifts, bound to its model by the fingerprint
    safetensors, other       a tuned state in ai00's layout [H, key, value], unless its metadata says otherwise
    .pth                     a tuned state in BlinkDL's layout [H, value, key]
    CBOR                     ai00's prefab state, shifts included

The form is told by the first bytes, not by the name. How a .pth is read is not known here: the caller brings it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from rnn_engine.errors import ModelError, StateError
from rnn_engine.types import F32, ModelShape, State
from states.files.full import SavedState, is_full_state, read_full_state
from states.files.prefab import decode_prefab, prefab_dims
from states.files.tuned import Layout, is_time_state, state_from_tuned
from states.frozen import MAX_LAST_TOKENS
from states.tokens import unpack

StateForm: TypeAlias = Literal["full", "tuned", "prefab", "inline"]

ReadPth: TypeAlias = Callable[[Path], Mapping[str, NDArray[Any]]]
"""Tensors by name from a .pth file, by a reader that runs no code of the file and raises ModelError."""

LAYOUT_KEY = "time_state_layout"

_PREFAB_SLACK = 1 << 16  # bytes that a CBOR file may hold besides the array


@dataclass(frozen=True, slots=True, eq=False)
class LoadedState:
    """What a file holds, and what it says of itself."""

    form: StateForm
    state: State
    logits: F32 | None = None  # [V] those after the last token
    num_tokens: int = 0  # that the state has taken in, where the file tells
    last_tokens: tuple[int, ...] = ()  # the last of them, as far as they are known
    name: str | None = None
    id: uuid.UUID | None = None
    default: bool = False


def read_state(
    path: Path, shape: ModelShape, model: str | None, read_pth: ReadPth, layout: Layout | None = None
) -> LoadedState:
    """The state in a file. `layout` overrides what the form says of a tuned state's axes.

    `model` is the fingerprint that a full state must have; None takes any whose shapes fit.
    Raises StateError where the file is damaged or does not fit the model.
    """
    try:
        with path.open("rb") as file:
            head = file.read(9)
        size = path.stat().st_size
    except OSError as error:
        raise StateError(f"{path.name}: can't be read: {error.strerror}") from error
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size:
        return _read_safetensors(path, shape, model, layout)
    if head[:2] == b"PK" or head[:1] == b"\x80":
        return _read_pth(path, shape, read_pth, layout or "value_key")
    if head[:1] and 0xA0 <= head[0] <= 0xBF:  # a CBOR map
        return _read_prefab(path, shape, size)
    raise StateError(f"{path.name}: is neither safetensors nor .pth nor CBOR; it starts with the bytes {head.hex(' ')}")


def _read_safetensors(path: Path, shape: ModelShape, model: str | None, layout: Layout | None) -> LoadedState:
    try:
        with safe_open(path, framework="np") as file:
            metadata: dict[str, str] = file.metadata() or {}
            names = [name for name in file.keys() if is_time_state(name)]  # noqa: SIM118  (not a mapping)
            tensors = {} if is_full_state(metadata) else {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path.name}: not a readable safetensors file: {error}") from error
    if is_full_state(metadata):
        return _from_saved(read_full_state(path, shape, model))
    declared = metadata.get(LAYOUT_KEY, "key_value")
    if declared not in ("key_value", "value_key"):
        raise StateError(f"{path.name}: {LAYOUT_KEY} is {declared!r}; expected 'key_value' or 'value_key'")
    chosen: Layout = layout or ("key_value" if declared == "key_value" else "value_key")
    return LoadedState("tuned", state_from_tuned(tensors, shape, chosen, path.name))


def _read_pth(path: Path, shape: ModelShape, read_pth: ReadPth, layout: Layout) -> LoadedState:
    try:
        tensors = read_pth(path)
    except ModelError as error:
        # a reader may name the whole path, which is not for those who sent the file
        raise StateError(f"{path.name}: {str(error).removeprefix(f'{path}: ')}") from error
    return LoadedState("tuned", state_from_tuned(tensors, shape, layout, path.name))


def _read_prefab(path: Path, shape: ModelShape, size: int) -> LoadedState:
    limit = 4 * int(np.prod(prefab_dims(shape))) + _PREFAB_SLACK
    if size > limit:
        raise StateError(f"{path.name}: has {size} bytes; a state of this model has at most {limit}")
    prefab = decode_prefab(path.read_bytes(), shape, path.name)
    return LoadedState("prefab", prefab.state, name=prefab.name, id=prefab.id, default=prefab.default)


def _from_saved(saved: SavedState) -> LoadedState:
    origin = saved.origin
    return LoadedState(
        "full",
        _as_f32(saved.payload.state),
        logits=saved.payload.logits,
        num_tokens=origin.num_tokens,
        last_tokens=origin.last_tokens if saved.tokens is None else tuple(unpack(saved.tokens)[-MAX_LAST_TOKENS:]),
        name=origin.name or None,
    )


def _as_f32(arrays: Mapping[str, NDArray[Any]]) -> dict[str, F32]:
    return {name: array.astype(np.float32) for name, array in arrays.items()}
