"""Whether arrays are a state of a model: every field there, of the right shape, and nothing but numbers inside.

Knows shapes; knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError
from rnn_engine.types import F32, ModelShape


def check_state(arrays: Mapping[str, NDArray[Any]], shape: ModelShape, source: str) -> dict[str, F32]:
    """`arrays` as a state in f32, or a StateError that says what is wrong with `source`."""
    expected = {field.name: (shape.num_layers, *field.shape) for field in shape.state_fields}
    if set(arrays) != set(expected):
        raise StateError(f"{source}: holds the fields {sorted(arrays)}; a {shape.version} state has {sorted(expected)}")
    return {name: check_array(arrays[name], size, f"{source}: {name}") for name, size in expected.items()}


def check_array(array: NDArray[Any], expected: tuple[int, ...], what: str) -> F32:
    """`array` in f32, or a StateError where its shape differs or where it holds NaN or infinity."""
    if array.shape != expected:
        raise StateError(f"{what} has shape {list(array.shape)}; this model needs {list(expected)}")
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit f32 is found below, as infinity
        values = np.ascontiguousarray(array, np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        bad = np.argwhere(~finite)
        position = [int(index) for index in bad[0]]
        raise StateError(f"{what} holds {len(bad)} NaN or infinite values, the first at {position}; all must be finite")
    return values
