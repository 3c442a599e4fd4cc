"""Whether arrays are a state of a model: every field there, of the right shape, and nothing but numbers inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError
from rnn_engine.tensor_files.listing import show
from rnn_engine.types import F32, ModelShape


class Shaped(Protocol):
    """An array, or what a file says of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def check_state(arrays: Mapping[str, NDArray[Any]], shape: ModelShape, source: str) -> dict[str, F32]:
    """Return `arrays` as a state in f32.

    Raises StateError, which begins with `source`, where a field or its shape is not the model's, or a value not finite.
    """
    check_fields(arrays, shape, source)
    return {name: check_array(array, array.shape, f"{source}: {name}") for name, array in arrays.items()}


def check_fields(arrays: Mapping[str, Shaped], shape: ModelShape, source: str) -> None:
    """Raise StateError, which begins with `source`, where the fields or their shapes are not the model's."""
    expected = {field.name: (shape.num_layers, *field.shape) for field in shape.state_fields}
    if set(arrays) != set(expected):
        raise StateError(
            f"{source}: holds the fields {show(str(sorted(arrays)))}; a {shape.version} state has {sorted(expected)}"
        )
    for name, size in expected.items():
        check_shape(arrays[name].shape, size, f"{source}: {name}")


def check_array(array: NDArray[Any], expected: tuple[int, ...], what: str) -> F32:
    """Return `array` in f32. Raises StateError where its shape differs or where it holds NaN or infinity."""
    check_shape(array.shape, expected, what)
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit f32 is found below, as infinity
        values = np.ascontiguousarray(array, np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        bad = np.argwhere(~finite)
        position = [int(index) for index in bad[0]]
        raise StateError(f"{what} holds {len(bad)} NaN or infinite values, the first at {position}; all must be finite")
    return values


def check_shape(found: tuple[int, ...], expected: tuple[int, ...], what: str) -> None:
    """Raise StateError, which begins with `what`, where the two differ."""
    if found != expected:
        raise StateError(f"{what} has shape {list(found)}; this model needs {list(expected)}")
