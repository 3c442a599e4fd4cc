"""ai00's prefab format of a state: one f32 array with a row for each channel vector, in a JSON request or a CBOR file.

The array is [L, R, D], row-major. The rows of a layer are its fields in the state's order. A vector field is one row. A
field with a matrix for each head is N rows: row j has at column h * N + i the number of head h at key j, value i. So
there are N + 2 rows, and 5 before RWKV-5. The first is the time-mix shift and the last the channel-mix shift. The
array's dimensions are named in the opposite order, the fastest first: [D, R, L, 1]. The CBOR file is a map {name, id,
default, data: {shape, data}}.
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
from rnn_engine.tensor_files.source import show
from rnn_engine.types import F32, FieldKind, ModelShape, State, StateField
from states.frozen import check_array

_STRINGS: Final = (2, 3)  # kinds of CBOR values: bytes and text
_ARRAY: Final = 4
_MAP: Final = 5
_TAG: Final = 6
_MOST_VALUES: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Prefab:
    """The content of a prefab CBOR file: a state with its name, id and default flag."""

    name: str
    id: uuid.UUID
    default: bool
    state: State


def prefab_dims(shape: ModelShape) -> tuple[int, int, int, int]:
    """Return the dimensions [D, R, L, 1] of the prefab array of a model's state, the fastest-varying first.

    Raises StateError if a state of this model does not fill whole rows of D numbers.
    """
    return (shape.width, sum(_num_rows(field) for field in _fields(shape, "prefab")), shape.num_layers, 1)


def state_from_rows(
    values: Sequence[float] | NDArray[np.float32], dims: Sequence[int], shape: ModelShape, source: str
) -> dict[str, F32]:
    """Return the state in the prefab array `values`, [L * R * D], as f32 arrays by field name.

    Raises StateError if `dims` or `values` do not fit the model. The message begins with `source`.
    """
    fields = _fields(shape, source)
    expected = prefab_dims(shape)
    if tuple(dims) != expected:
        raise StateError(
            f"{source}: shape is {show(str(list(dims[:8])))}; this model needs {list(expected)}, the fastest axis first"
        )
    try:
        flat = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise StateError(f"{source}: data is not a flat list of numbers: {error}") from error
    check_array(flat, (int(np.prod(expected)),), f"{source}: data")
    rows = flat.reshape(shape.num_layers, -1, shape.width)  # [L, R, D]
    state = {}
    start = 0
    for field in fields:
        own = rows[:, start : start + _num_rows(field)]
        start += _num_rows(field)
        if field.kind is FieldKind.MATRIX:
            num_heads, num_values, num_keys = field.shape
            keyed = own.reshape(-1, num_keys, num_heads, num_values)
            state[field.name] = np.ascontiguousarray(keyed.transpose(0, 2, 3, 1))  # [L, H, value, key]
        else:
            state[field.name] = own[:, 0].copy()
    return state


def rows_from_state(state: State, shape: ModelShape) -> F32:
    """Return a state as a flat prefab array, [L * R * D] f32. Raises StateError as `prefab_dims` does."""
    rows = []
    for field in _fields(shape, "export"):
        values = state[field.name]
        if field.kind is FieldKind.MATRIX:
            values = values.transpose(0, 3, 1, 2)  # [L, key, H, value]
        rows.append(values.reshape(shape.num_layers, _num_rows(field), shape.width))
    return np.concatenate(rows, axis=1).astype(np.float32, copy=False).reshape(-1)


def decode_prefab(data: bytes, shape: ModelShape, source: str) -> Prefab:
    """Parse the bytes of a prefab CBOR file. Raises StateError if they are damaged or do not fit the model.

    Error messages begin with `source`.
    """
    if not _is_plain_cbor(data):
        raise StateError(
            f"{source}: not readable CBOR: the file is truncated, or holds values that a state does not have"
        )
    try:
        content = cbor2.loads(data)
    except Exception as error:  # the library also lets the exceptions of its value decoders through
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
        raise StateError(f"{source}: data has {len(raw)} bytes; expected a multiple of 4, for f32 values")
    state = state_from_rows(np.frombuffer(raw, "<f4"), dims, shape, source)
    return Prefab(str(fields["name"]), uuid.UUID(bytes=key), fields["default"] is True, state)


def encode_prefab(prefab: Prefab, shape: ModelShape) -> bytes:
    """Return the bytes of the prefab CBOR file of `prefab`; the inverse of `decode_prefab`."""
    rows = rows_from_state(prefab.state, shape)
    tensor = {"shape": list(prefab_dims(shape)), "data": rows.astype("<f4").tobytes()}
    return cbor2.dumps({"name": prefab.name, "id": prefab.id.bytes, "default": prefab.default, "data": tensor})


def _is_plain_cbor(data: bytes) -> bool:
    """Return True if `data` is one CBOR value of at most `_MOST_VALUES` parts, without tags or indefinite lengths.

    Decoding such CBOR takes little memory, even if it is hostile.
    """
    position, awaited, seen = 0, 1, 0
    while awaited > 0:
        if position >= len(data) or seen == _MOST_VALUES or awaited > _MOST_VALUES:
            return False
        kind, size = divmod(data[position], 32)
        more = {24: 1, 25: 2, 26: 4, 27: 8}.get(size, 0)
        if size >= 28 or kind == _TAG:  # of indefinite length, or a tag, which makes a value of another type
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


def _num_rows(field: StateField) -> int:
    return field.shape[-1] if field.kind is FieldKind.MATRIX else 1


def _fields(shape: ModelShape, source: str) -> tuple[StateField, ...]:
    """Return the state fields of a model. Raises StateError if a field does not fill whole rows of D numbers."""
    for field in shape.state_fields:
        sizes = (field.shape[0] * field.shape[1],) if field.kind is FieldKind.MATRIX else field.shape
        if sizes != (shape.width,):
            raise StateError(
                f"{source}: a {shape.version} state can't be in this form, which has rows of {shape.width} "
                f"numbers: {field.name} has the shape {list(field.shape)}"
            )
    return shape.state_fields
