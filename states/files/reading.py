"""Reading a state from a file of any form that users have.

    safetensors, ours        a full state with shifts, bound to its model by the fingerprint
    safetensors, other       a tuned state in ai00's layout [H, key, value], unless its metadata says otherwise
    .pth                     a tuned state in BlinkDL's layout [H, value, key]
    CBOR                     ai00's prefab state, shifts included

The form is told by the first bytes, not by the name. What a file says of its tensors is held against the model before
any of them is read, so that a hostile file takes no more memory than a state.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError
from rnn_engine.tensor_files.binary_file import BinaryFile
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.source import TensorSource
from rnn_engine.types import F32, ModelShape, State
from states.files.full import SavedState, full_state_of, is_full_state
from states.files.opening import opened, read_pth, read_safetensors
from states.files.prefab import decode_prefab, prefab_dims
from states.files.tuned import Layout, check_tuned, is_time_state, state_from_tuned
from states.frozen import MAX_LAST_TOKENS
from states.tokens import TOKEN_BYTES, unpack

StateForm: TypeAlias = Literal["full", "tuned", "prefab", "inline"]

LAYOUT_KEY = "time_state_layout"

_HEAD_BYTES = 9
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


def read_state(path: Path, shape: ModelShape, model: str | None, layout: Layout | None = None) -> LoadedState:
    """The state in a file. `layout` overrides what the form says of a tuned state's axes.

    `model` is the fingerprint that a full state must have; None takes any whose shapes fit.
    Raises StateError where the file can't be read, is damaged or does not fit the model.
    """
    with opened(path) as file:
        size = file.stamp.size
        head = file.read(0, min(_HEAD_BYTES, size)).tobytes()
        if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size:
            return _read_safetensors(file, shape, model, layout)
        if head[:2] == b"PK" or head[:1] == b"\x80":
            with closing(read_pth(file, shape)) as source:
                return _read_tuned(source, shape, layout or "value_key", path.name)
        if head[:1] and 0xA0 <= head[0] <= 0xBF:  # a CBOR map
            return _read_prefab(file, shape)
    raise StateError(f"{path.name}: is neither safetensors nor .pth nor CBOR")


def _read_safetensors(file: BinaryFile, shape: ModelShape, model: str | None, layout: Layout | None) -> LoadedState:
    source, name = read_safetensors(file), file.path.name
    if is_full_state(source.metadata):
        return _from_saved(full_state_of(source, file.path, shape, model), shape, name)
    declared = source.metadata.get(LAYOUT_KEY, "key_value")
    if declared not in ("key_value", "value_key"):
        raise StateError(f"{name}: {LAYOUT_KEY} is {show(declared)!r}; expected 'key_value' or 'value_key'")
    return _read_tuned(source, shape, layout or ("key_value" if declared == "key_value" else "value_key"), name)


def _read_tuned(source: TensorSource, shape: ModelShape, layout: Layout, name: str) -> LoadedState:
    check_tuned(source.tensors, shape, name)
    tensors = {tensor: np.array(source.read(tensor)) for tensor in source.tensors if is_time_state(tensor)}
    return LoadedState("tuned", state_from_tuned(tensors, shape, layout, name))


def _read_prefab(file: BinaryFile, shape: ModelShape) -> LoadedState:
    name, size = file.path.name, file.stamp.size
    limit = 4 * int(np.prod(prefab_dims(shape))) + _PREFAB_SLACK
    if size > limit:
        raise StateError(f"{name}: has {size} bytes; a state of this model has at most {limit}")
    prefab = decode_prefab(file.read(0, size).tobytes(), shape, name)
    return LoadedState("prefab", prefab.state, name=prefab.name, id=prefab.id, default=prefab.default)


def _from_saved(saved: SavedState, shape: ModelShape, name: str) -> LoadedState:
    origin = saved.origin
    last_tokens = (
        origin.last_tokens if saved.tokens is None else tuple(unpack(saved.tokens[-MAX_LAST_TOKENS * TOKEN_BYTES :]))
    )
    if len(last_tokens) > MAX_LAST_TOKENS or any(token >= shape.vocab_size for token in last_tokens):
        raise StateError(
            f"{name}: last_tokens are no token ids from 0 to {shape.vocab_size - 1}, at most {MAX_LAST_TOKENS}"
        )
    return LoadedState(
        "full",
        _as_f32(saved.payload.state),
        logits=saved.payload.logits,
        num_tokens=origin.num_tokens,
        last_tokens=last_tokens,
        name=origin.name or None,
    )


def _as_f32(arrays: Mapping[str, NDArray[Any]]) -> dict[str, F32]:
    return {name: array.astype(np.float32) for name, array in arrays.items()}
