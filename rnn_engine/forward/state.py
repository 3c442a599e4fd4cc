"""How a device holds the states of its slots."""

from __future__ import annotations

from math import prod

import numpy as np

from rnn_engine.forward.packing import round_up
from rnn_engine.types import F32, FieldKind, ModelShape, State, StateField


class StateLayout:
    """How a layer's buffer holds a slot's state, field after field, each from a multiple of 4 floats on.

    A shift is there twice, as sides 0 and 1: a step reads the side that its run names and writes the other one.
    A matrix [H, value, key] is stored as [H, key / 4, value, 4].
    """

    def __init__(self, shape: ModelShape) -> None:
        self._num_layers = shape.num_layers
        self._fields = shape.state_fields
        self.offsets: dict[str, int] = {}  # field name -> its first float
        self.stride = 0  # floats of a slot
        for field in self._fields:
            self.offsets[field.name] = self.stride
            self.stride += round_up(_copies(field) * prod(field.shape), 4)

    def pack(self, state: State) -> F32:
        """Return every layer's fields as [L, stride], with side 0 in use."""
        packed = np.zeros((self._num_layers, self.stride), np.float32)
        for field in self._fields:
            values = state[field.name]
            if field.kind is FieldKind.MATRIX:
                heads, rows, columns = field.shape
                values = values.reshape(-1, heads, rows, columns // 4, 4).swapaxes(2, 3)
            start = self.offsets[field.name]
            packed[:, start : start + prod(field.shape)] = values.reshape(self._num_layers, -1)
        return packed

    def unpack(self, packed: F32, side: int) -> dict[str, F32]:
        """Return the fields that `pack` or a device stored in [L, stride], with the shifts of `side`."""
        return {field.name: self._unpack_field(packed, field, side) for field in self._fields}

    def _unpack_field(self, packed: F32, field: StateField, side: int) -> F32:
        size = prod(field.shape)
        start = self.offsets[field.name] + (side * size if field.kind is FieldKind.SHIFT else 0)
        values = packed[:, start : start + size]
        if field.kind is FieldKind.MATRIX:
            heads, rows, columns = field.shape
            values = values.reshape(-1, heads, columns // 4, rows, 4).swapaxes(2, 3)
        return np.array(values, order="C").reshape(-1, *field.shape)


def _copies(field: StateField) -> int:
    return 2 if field.kind is FieldKind.SHIFT else 1
