"""What a runner demands of a state that is put into one of its slots."""

from __future__ import annotations

import numpy as np

from rnn_engine.errors import StateError
from rnn_engine.types import ModelShape, State


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
