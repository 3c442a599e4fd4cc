"""ai00's prefab format of a state: one f32 array with a row for each channel vector, in a JSON request or a CBOR file.

The array is [L, R, D], row-major. The rows of a layer are its fields in the state's order. A vector field is one row. A
field with a matrix for each head is N rows: row j has at column h * N + i the number of head h at key j, value i. So
there are N + 2 rows, and 5 before RWKV-5. The first is the time-mix shift and the last the channel-mix shift. The
array's dimensions are named in the opposite order, the fastest first: [D, R, L, 1]. The CBOR file is a map {name, id,
default, data: {shape, data}}.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cbor2
import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError
from rnn_engine.tensor_files.prefab_file import ByteString, read_items
from rnn_engine.tensor_files.source import ByteSource, show
from rnn_engine.types import F32, FieldKind, ModelShape, State, StateField
from rnn_engine_states.frozen import check_array

_MOST_ITEMS: Final = 256  # of a file; a state has 17
_KINDS: Final[Mapping[type, str]] = {ByteString: "bytes"}


@dataclass(frozen=True, slots=True, eq=False)
class Prefab:
    """The content of ai00's prefab file, which is CBOR: a state with its name, id and default flag."""

    name: str
    id: uuid.UUID
    default: bool
    state: State


def prefab_dims(shape: ModelShape) -> tuple[int, int, int, int]:
    """Return the dimensions [D, R, L, 1] of a prefab array. Raises StateError if fields do not fill whole rows."""
    return (shape.width, sum(_num_rows(field) for field in _fields(shape, "prefab")), shape.num_layers, 1)


def state_from_rows(
    values: Sequence[float] | NDArray[np.float32], dims: Sequence[int], shape: ModelShape, source: str
) -> dict[str, F32]:
    """Return the state in `values` [L * R * D] by field. Raises StateError, which begins with `source`."""
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


def decode_prefab(file: ByteSource, shape: ModelShape, source: str) -> Prefab:
    """Read ai00's CBOR file of a state. Raises ModelError if it is damaged, StateError if it does not fit."""
    content = read_items(file, _MOST_ITEMS)
    fields = _map_with(content, {"name": str, "id": ByteString, "default": bool, "data": dict}, source)
    tensor = _map_with(fields["data"], {"shape": list, "data": ByteString}, f"{source}: data")
    key, raw = fields["id"], tensor["data"]
    if key.size != 16:
        raise StateError(f"{source}: id has {key.size} bytes; a UUID has 16")
    if raw.size % 4 != 0:
        raise StateError(f"{source}: data has {raw.size} bytes; expected a multiple of 4, for f32 values")
    values = file.read(raw.start, raw.size).view("<f4")
    state = state_from_rows(values, tensor["shape"], shape, source)
    return Prefab(fields["name"], uuid.UUID(bytes=file.read(key.start, key.size).tobytes()), fields["default"], state)


def encode_prefab(prefab: Prefab, shape: ModelShape) -> bytes:
    """Return the bytes of a prefab file, ai00's CBOR file of a state; the inverse of `decode_prefab`."""
    rows = rows_from_state(prefab.state, shape)
    tensor = {"shape": list(prefab_dims(shape)), "data": rows.astype("<f4").tobytes()}
    return cbor2.dumps({"name": prefab.name, "id": prefab.id.bytes, "default": prefab.default, "data": tensor})


def _map_with(content: object, types: dict[str, type], source: str) -> dict[str, Any]:
    """Return `content` if it is a map that has fields of these types. Raises StateError for anything else."""
    if not isinstance(content, dict):
        raise StateError(f"{source}: is a {type(content).__name__}; expected a map with {sorted(types)}")
    for name, kind in types.items():
        if not isinstance(content.get(name), kind):
            found, expected = (_KINDS.get(each, each.__name__) for each in (type(content.get(name)), kind))
            raise StateError(f"{source}: field {name!r} is {found}; expected {expected}")
    return content


def _num_rows(field: StateField) -> int:
    return field.shape[-1] if field.kind is FieldKind.MATRIX else 1


def _fields(shape: ModelShape, source: str) -> tuple[StateField, ...]:
    """Return the state's fields. Raises StateError, beginning with `source`, if one does not fill whole rows."""
    for field in shape.state_fields:
        sizes = (field.shape[0] * field.shape[1],) if field.kind is FieldKind.MATRIX else field.shape
        if sizes != (shape.width,):
            raise StateError(
                f"{source}: a {shape.version} state can't be in this form, which has rows of {shape.width} "
                f"numbers: {field.name} has the shape {list(field.shape)}"
            )
    return shape.state_fields
