"""A state on its way into a slot and out of it: what a runner demands of one, and how a device holds one."""

from __future__ import annotations

import numpy as np

from rnn_engine.errors import StateError
from rnn_engine.types import F32, ModelShape, State


def check_state(state: State, shape: ModelShape) -> None:
    """Raise StateError where the fields, sizes or number format of `state` are not those of the model."""
    expected = {field.name: (shape.num_layers, *field.shape) for field in shape.state_fields}
    if state.keys() != expected.keys():
        raise StateError(f"state fields: {sorted(state)} do not fit the model; expected {sorted(expected)}")
    for name, values in state.items():
        if values.shape != expected[name]:
            raise StateError(f"state {name}: shape {values.shape} does not fit the model; expected {expected[name]}")
        if values.dtype != np.float32:
            raise StateError(f"state {name}: type {values.dtype} is not allowed; expected float32")


class StateLayout:
    """How a layer's buffer holds a slot's state: both copies of both shifts, then wkv as [H, N / 4, N, 4].

    The two copies are sides 0 and 1: a step reads the side that its run names and writes the other one.
    """

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.att_shift = 0  # [2, D]
        self.ffn_shift = 2 * shape.width  # [2, D]
        self.wkv = 4 * shape.width
        self.stride = 4 * shape.width + shape.width * shape.head_size

    def pack(self, att_shift: F32, wkv: F32, ffn_shift: F32) -> F32:
        """One layer's fields -> [stride], with side 0 in use."""
        heads, size = self.shape.num_heads, self.shape.head_size
        turned = wkv.reshape(heads, size, size // 4, 4).transpose(0, 2, 1, 3)
        unused = np.zeros(self.shape.width, np.float32)
        return np.concatenate([att_shift, unused, ffn_shift, unused, turned.reshape(-1)])

    def unpack(self, packed: F32, side: int) -> tuple[F32, F32, F32]:
        """[stride] -> att_shift [D], wkv [H, value, key], ffn_shift [D], with the shifts of `side`."""
        width, heads, size = self.shape.width, self.shape.num_heads, self.shape.head_size
        shifts = packed[: self.wkv].reshape(2, 2, width)
        turned = packed[self.wkv :].reshape(heads, size // 4, size, 4).transpose(0, 2, 1, 3)
        return shifts[0, side].copy(), turned.reshape(heads, size, size).copy(), shifts[1, side].copy()
