"""How a device holds the states of its slots."""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from rnn_engine.forward.packing import round_up
from rnn_engine.types import F32, FieldKind, ModelShape, State, StateField

_KEYS_AT_ONCE: Final = 8  # that the kernels of a recurrence load


class StateLayout:
    """How a layer's buffer holds a slot's state, field after field, each from a multiple of 4 floats on.

    A shift is there twice, as sides 0 and 1: a step reads the side that its run names and writes the other one.
    A matrix [H, value, key] is stored as [H, key / 4, value, 4], with the keys rounded up to 8 by zeros.
    """

    def __init__(self, shape: ModelShape) -> None:
        self._num_layers = shape.num_layers
        self._fields = shape.state_fields
        self.offsets: dict[str, int] = {}  # field name -> its first float
        self.stride = 0  # floats of a slot
        for field in self._fields:
            self.offsets[field.name] = self.stride
            self.stride += round_up(_stored_size(field), 4)

    def pack(self, state: State) -> F32:
        """Return every layer's fields as [L, stride], with side 0 in use."""
        packed = np.zeros((self._num_layers, self.stride), np.float32)
        for field in self._fields:
            values = state[field.name]
            if field.kind is FieldKind.MATRIX:
                heads, rows, columns = field.shape
                padding = round_up(columns, _KEYS_AT_ONCE) - columns
                values = np.pad(values, ((0, 0), (0, 0), (0, 0), (0, padding)))
                values = values.reshape(-1, heads, rows, (columns + padding) // 4, 4).swapaxes(2, 3)
            values = values.reshape(self._num_layers, -1)
            start = self.offsets[field.name]
            packed[:, start : start + values.shape[1]] = values
        return packed

    def unpack(self, packed: F32, side: int) -> dict[str, F32]:
        """Return the fields that `pack` or a device stored in [L, stride], with the shifts of `side`."""
        return {field.name: self._unpack_field(packed, field, side) for field in self._fields}

    def _unpack_field(self, packed: F32, field: StateField, side: int) -> F32:
        if field.kind is FieldKind.MATRIX:
            heads, rows, columns = field.shape
            start = self.offsets[field.name]
            values = packed[:, start : start + _stored_size(field)]
            values = values.reshape(-1, heads, round_up(columns, _KEYS_AT_ONCE) // 4, rows, 4).swapaxes(2, 3)
            values = values.reshape(-1, heads, rows, round_up(columns, _KEYS_AT_ONCE))[..., :columns]
        else:
            size = prod(field.shape)
            start = self.offsets[field.name] + (side * size if field.kind is FieldKind.SHIFT else 0)
            values = packed[:, start : start + size]
        return np.array(values, order="C").reshape(-1, *field.shape)


def _stored_size(field: StateField) -> int:
    """Floats of a field in a layer's buffer."""
    match field.kind:
        case FieldKind.SHIFT:
            return 2 * prod(field.shape)
        case FieldKind.MATRIX:
            heads, rows, columns = field.shape
            return heads * rows * round_up(columns, _KEYS_AT_ONCE)
        case FieldKind.VECTOR:
            return prod(field.shape)
