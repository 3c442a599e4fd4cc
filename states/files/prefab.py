"""ai00's form of a state: one f32 array with rows of channels, alone in a JSON request or inside a CBOR file.

The array is [L, N + 2, D], row-major: row 0 of a layer is the time-mix shift, the last row the channel-mix shift,
and row 1 + j has at column h * N + i the wkv of head h at key j, value i. Its dimensions are named in the opposite
order, the fastest first: [D, N + 2, L, 1]. The CBOR file is a map {name, id, default, data: {shape, data}}.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cbor2
import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError
from rnn_engine.tensor_files.listing import show
from rnn_engine.types import F32, FieldKind, ModelShape, State, StateField
from states.checks import check_array

_STRINGS: Final = (2, 3)  # kinds of CBOR values: bytes and text
_ARRAY: Final = 4
_MAP: Final = 5
_TAG: Final = 6
_MOST_VALUES: Final = 256

_FORM: Final = (FieldKind.SHIFT, FieldKind.MATRIX, FieldKind.SHIFT)


@dataclass(frozen=True, slots=True, eq=False)
class Prefab:
    """What a CBOR state file holds."""

    name: str
    id: uuid.UUID
    default: bool
    state: State


def prefab_dims(shape: ModelShape) -> tuple[int, int, int, int]:
    """The four dimensions of a model's state in this form, the fastest first."""
    _, wkv, _ = _fields(shape, "prefab")
    return (shape.width, wkv.shape[-1] + 2, shape.num_layers, 1)


def state_from_rows(
    values: Sequence[float] | NDArray[np.float32], dims: Sequence[int], shape: ModelShape, source: str
) -> dict[str, F32]:
    """The state that `values` [L * (N + 2) * D] describe. Raises StateError where they do not fit the model."""
    att_shift, wkv, ffn_shift = _fields(shape, source)
    expected = prefab_dims(shape)
    if tuple(dims) != expected:
        raise StateError(
            f"{source}: shape is {show(str(list(dims[:8])))}; this model needs {list(expected)}, the fastest axis first"
        )
    try:
        flat = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise StateError(f"{source}: data is no flat list of numbers: {error}") from error
    check_array(flat, (int(np.prod(expected)),), f"{source}: data")
    num_heads, num_values, num_keys = wkv.shape
    rows = flat.reshape(shape.num_layers, num_keys + 2, shape.width)  # [L, N + 2, D]
    keyed = rows[:, 1:-1].reshape(shape.num_layers, num_keys, num_heads, num_values)
    return {
        att_shift.name: rows[:, 0].copy(),
        wkv.name: np.ascontiguousarray(keyed.transpose(0, 2, 3, 1)),  # [L, key, H, value] -> [L, H, value, key]
        ffn_shift.name: rows[:, -1].copy(),
    }


def rows_from_state(state: State, shape: ModelShape) -> F32:
    """A state in this form. -> [L * (N + 2) * D] f32"""
    att_shift, wkv, ffn_shift = _fields(shape, "export")
    num_keys = wkv.shape[-1]
    rows = np.empty((shape.num_layers, num_keys + 2, shape.width), np.float32)
    rows[:, 0] = state[att_shift.name]
    rows[:, 1:-1] = state[wkv.name].transpose(0, 3, 1, 2).reshape(shape.num_layers, num_keys, shape.width)
    rows[:, -1] = state[ffn_shift.name]
    return rows.reshape(-1)


def decode_prefab(data: bytes, shape: ModelShape, source: str) -> Prefab:
    """Read a CBOR state file. Raises StateError where it is damaged or does not fit the model."""
    if not _is_plain_cbor(data):
        raise StateError(f"{source}: not readable CBOR: it is truncated, or holds more than a state's plain values")
    try:
        content = cbor2.loads(data)
    except Exception as error:  # the library raises what its decoders of values raise, too
        raise StateError(f"{source}: not readable CBOR: {error}") from error
    fields = _map_with(content, {"name": str, "id": bytes, "default": bool, "data": dict}, source)
    tensor = _map_with(fields["data"], {"shape": list, "data": bytes}, f"{source}: data")
    dims, raw, key = tensor["shape"], tensor["data"], fields["id"]
    assert isinstance(dims, list)
    assert isinstance(raw, bytes)
    assert isinstance(key, bytes)
    if len(key) != 16:
        raise StateError(f"{source}: id has {len(key)} bytes; a UUID has 16")
    if len(raw) % 4 != 0:
        raise StateError(f"{source}: data has {len(raw)} bytes, which are no whole f32 values")
    state = state_from_rows(np.frombuffer(raw, "<f4"), dims, shape, source)
    return Prefab(str(fields["name"]), uuid.UUID(bytes=key), fields["default"] is True, state)


def encode_prefab(prefab: Prefab, shape: ModelShape) -> bytes:
    """The CBOR state file that `decode_prefab` reads."""
    rows = rows_from_state(prefab.state, shape)
    tensor = {"shape": list(prefab_dims(shape)), "data": rows.astype("<f4").tobytes()}
    return cbor2.dumps({"name": prefab.name, "id": prefab.id.bytes, "default": prefab.default, "data": tensor})


def _is_plain_cbor(data: bytes) -> bool:
    """Return whether `data` is one value of few parts, none of them tagged: such CBOR is decoded in little memory."""
    position, awaited, seen = 0, 1, 0
    while awaited > 0:
        if position >= len(data) or seen == _MOST_VALUES or awaited > _MOST_VALUES:
            return False
        kind, size = divmod(data[position], 32)
        more = {24: 1, 25: 2, 26: 4, 27: 8}.get(size, 0)
        if size >= 28 or kind == _TAG:  # of indefinite length, or a value of another type in disguise
            return False
        argument = int.from_bytes(data[position + 1 : position + 1 + more], "big") if more else size
        position += 1 + more + (argument if kind in _STRINGS else 0)
        awaited += {_ARRAY: argument, _MAP: 2 * argument}.get(kind, 0) - 1
        seen += 1
    return position <= len(data)


def _map_with(content: object, types: dict[str, type], source: str) -> dict[str, object]:
    if not isinstance(content, dict):
        raise StateError(f"{source}: is a {type(content).__name__}; expected a map with {sorted(types)}")
    for name, kind in types.items():
        if not isinstance(content.get(name), kind):
            found = type(content.get(name)).__name__
            raise StateError(f"{source}: field {name!r} is {found}; expected {kind.__name__}")
    return content


def _fields(shape: ModelShape, source: str) -> tuple[StateField, StateField, StateField]:
    """The three fields that the form has rows for, in the order of its rows."""
    match shape.state_fields:
        case (first, wkv, last) if (first.kind, wkv.kind, last.kind) == _FORM:
            if first.shape == last.shape == (shape.width,) and wkv.shape[0] * wkv.shape[1] == shape.width:
                return first, wkv, last
    raise StateError(f"{source}: this form has a shift, a matrix and a shift; a {shape.version} state has other fields")
