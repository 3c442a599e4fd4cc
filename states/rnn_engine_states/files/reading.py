"""Read a state from a file in any supported format, including tuned initial states.

    safetensors, ours        a full state with shifts, bound to its model by the fingerprint.
    safetensors, other       a tuned state in ai00's layout [H, key, value], unless its metadata says otherwise.
    .pth                     a tuned state in BlinkDL's layout [H, value, key].
    CBOR                     ai00's prefab state, shifts included.

The first bytes decide the format, not the name. The names and shapes of a file's tensors are checked against the model
before any tensor is read, so that a hostile file takes no more memory than a state.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError
from rnn_engine.tensor_files.source import BinaryFile, TensorSource, show, show_all
from rnn_engine.types import F32, FieldKind, LoraPairs, ModelShape, State, StateField
from rnn_engine_states.files.full import (
    SavedState,
    check_model,
    full_state_of,
    is_full_state,
    opened,
    read_pth,
    read_safetensors,
)
from rnn_engine_states.files.prefab import decode_prefab, prefab_dims
from rnn_engine_states.frozen import MAX_LAST_TOKENS, Shaped, TokenPath, check_array, check_shape
from rnn_engine_states.tokens import TOKEN_BYTES, unpack

# Tuned initial states: files with a trained wkv tensor `blocks.N.att.time_state` for each layer, and nothing else.
#
# A tuned state starts a sequence with these tensors and with shifts of zero. BlinkDL's .pth files have [H, value, key];
# ai00's `.st` convention has the last two axes swapped. Both axes have the same size, so the tensors can't show which
# layout it is: the reader of the container decides.

Layout: TypeAlias = Literal["value_key", "key_value"]
"""The order of the last two axes of a time_state tensor: BlinkDL's `value_key`, or ai00's `key_value`."""

_NAME = re.compile(r"blocks\.(0|[1-9][0-9]{0,5})\.att\.time_state")


def is_time_state(name: str) -> bool:
    """Return True if `name` is that of a tuned state's tensor in a state file: `blocks.N.att.time_state`."""
    return _NAME.fullmatch(name) is not None


def check_tuned(tensors: Mapping[str, Shaped], shape: ModelShape, source: str) -> None:
    """Raise StateError, beginning with `source`, unless each layer has one time_state tensor of its shape."""
    field = _matrix_field(shape, source)
    layers = _layers(tensors, source)
    if layers != set(range(shape.num_layers)):
        raise StateError(
            f"{source}: has time_state for layers {_ranges(layers)}; this model has layers 0 to {shape.num_layers - 1}"
        )
    for layer in range(shape.num_layers):
        name = tensor_name(layer)
        check_shape(tensors[name].shape, field.shape, f"{source}: {name}")


def state_from_tuned(
    tensors: Mapping[str, NDArray[Any]], shape: ModelShape, layout: Layout, source: str
) -> dict[str, F32]:
    """Return the state of time_state tensors, with zero shifts. Raises StateError, which begins with `source`."""
    check_tuned(tensors, shape, source)
    field = _matrix_field(shape, source)
    state = shape.initial_state()
    for layer in range(shape.num_layers):
        name = tensor_name(layer)
        wkv = check_array(tensors[name], field.shape, f"{source}: {name}")
        state[field.name][layer] = wkv if layout == "value_key" else wkv.transpose(0, 2, 1)
    return state


def tuned_from_state(state: State, shape: ModelShape, layout: Layout) -> dict[str, F32]:
    """Return the wkv matrices as time_state tensors, without shifts. Raises StateError if the model has none."""
    wkv = state[_matrix_field(shape, "export").name]  # [L, H, value, key]
    ordered = wkv if layout == "value_key" else wkv.transpose(0, 1, 3, 2)
    return {tensor_name(layer): np.ascontiguousarray(ordered[layer]) for layer in range(shape.num_layers)}


def tensor_name(layer: int) -> str:
    return f"blocks.{layer}.att.time_state"


def _matrix_field(shape: ModelShape, source: str) -> StateField:
    """Return the state field that time_state tensors initialise: the wkv matrix. Raises StateError if there is none."""
    matrices = [field for field in shape.state_fields if field.kind is FieldKind.MATRIX]
    if len(matrices) != 1:
        raise StateError(
            f"{source}: a tuned state has one matrix for each head; a {shape.version} state has no such field"
        )
    return matrices[0]


def _layers(names: Iterable[str], source: str) -> set[int]:
    layers = {int(match[1]) for match in map(_NAME.fullmatch, names) if match}
    if not layers:
        raise StateError(f"{source}: holds no blocks.N.att.time_state tensors")
    return layers


def _ranges(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    gapless = len(ordered) == ordered[-1] - ordered[0] + 1
    return f"{ordered[0]} to {ordered[-1]}" if gapless else show_all([str(number) for number in ordered])


StateForm: TypeAlias = Literal["full", "tuned", "prefab", "inline", "lora"]

LAYOUT_KEY = "time_state_layout"
MODEL_KEY = "rnn_engine_model"
"""The keys of a tuned state's metadata: its layout, and the fingerprint of the model for which it was made."""

_HEAD_BYTES = 9
_PREFAB_SLACK = 1 << 16  # bytes that a CBOR file may have besides the array


@dataclass(frozen=True, slots=True, eq=False)
class LoadedState:
    """A state that was read from a file or a request, with its logits, tokens, name and id if they were given."""

    form: StateForm
    state: State
    logits: F32 | None = None  # [V] those after the last token
    num_tokens: int = 0  # that the state has taken in; 0 if the file does not say
    last_tokens: tuple[int, ...] = ()  # the last of them, as far as they are known
    name: str | None = None
    id: uuid.UUID | None = None
    default: bool = False
    path: TokenPath | None = None  # if all tokens are known
    lora: LoraPairs | None = None


def read_state(path: Path, shape: ModelShape, model: str | None, layout: Layout | None = None) -> LoadedState:
    """Read a state file in any supported format, which is recognised by the first bytes.

    `layout` overrides the format's layout of a tuned state's matrices.

    `model` is the fingerprint of the model that a file must name, if it names one. None accepts any model whose shapes
    fit. Raises StateError if the file can't be read, is damaged or does not fit the model.
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
    check_model(name, source.metadata.get(MODEL_KEY), model)
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
    prefab = decode_prefab(file, shape, name)
    return LoadedState("prefab", prefab.state, name=prefab.name, id=prefab.id, default=prefab.default)


def _from_saved(saved: SavedState, shape: ModelShape, name: str) -> LoadedState:
    origin = saved.origin
    last_tokens = (
        origin.last_tokens if saved.tokens is None else tuple(unpack(saved.tokens[-MAX_LAST_TOKENS * TOKEN_BYTES :]))
    )
    if len(last_tokens) > MAX_LAST_TOKENS or any(token >= shape.vocab_size for token in last_tokens):
        raise StateError(
            f"{name}: last_tokens must be at most {MAX_LAST_TOKENS} token ids from 0 to {shape.vocab_size - 1}"
        )
    return LoadedState(
        "full",
        saved.payload.expand(),
        logits=saved.payload.logits,
        num_tokens=origin.num_tokens,
        last_tokens=last_tokens,
        name=origin.name or None,
        path=None if saved.tokens is None else TokenPath(origin.initial_state, saved.tokens),
        lora=saved.lora,
    )
