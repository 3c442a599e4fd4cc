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
        self.offsets = {"att_shift": 0, "ffn_shift": 2 * shape.width, "wkv": 4 * shape.width}  # floats
        self.stride = 4 * shape.width + shape.width * shape.head_size

    def pack(self, state: State) -> F32:
        """Every layer's fields -> [L, stride], with side 0 in use."""
        layers, width, size = self.shape.num_layers, self.shape.width, self.shape.head_size
        packed = np.zeros((layers, self.stride), np.float32)
        for name in ("att_shift", "ffn_shift"):
            packed[:, self.offsets[name] : self.offsets[name] + width] = state[name]
        turned = state["wkv"].reshape(layers, -1, size, size // 4, 4).transpose(0, 1, 3, 2, 4)
        packed[:, self.offsets["wkv"] :] = turned.reshape(layers, -1)
        return packed

    def unpack(self, packed: F32, side: int) -> dict[str, F32]:
        """[L, stride] -> every layer's fields, with the shifts of `side`."""
        layers, width, size = self.shape.num_layers, self.shape.width, self.shape.head_size
        shifts = packed[:, : self.offsets["wkv"]].reshape(layers, 2, 2, width)
        turned = packed[:, self.offsets["wkv"] :].reshape(layers, -1, size // 4, size, 4).transpose(0, 1, 3, 2, 4)
        wkv = np.ascontiguousarray(turned).reshape(layers, -1, size, size)  # [L, H, value, key]
        return {"att_shift": shifts[:, 0, side].copy(), "wkv": wkv, "ffn_shift": shifts[:, 1, side].copy()}
