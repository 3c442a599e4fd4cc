"""Tuned initial states: the trained wkv tensors of a model, `blocks.N.att.time_state`, and nothing else.

A state as it was trained starts a sequence with these tensors and with shifts of zero. BlinkDL's .pth files hold
[H, value, key]; ai00's `.st` convention has the two swapped. They are of one size, so a file can't show which it is:
the reader of the container says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError
from rnn_engine.tensor_files.listing import show_all
from rnn_engine.types import F32, FieldKind, ModelShape, State, StateField
from states.checks import Shaped, check_array, check_shape

Layout: TypeAlias = Literal["value_key", "key_value"]
"""Which of the last two axes of a time_state tensor is which: BlinkDL's, or ai00's."""

_NAME = re.compile(r"blocks\.(0|[1-9][0-9]{0,5})\.att\.time_state")


def is_time_state(name: str) -> bool:
    """Whether a tensor of this name is part of a tuned state."""
    return _NAME.fullmatch(name) is not None


def check_tuned(tensors: Mapping[str, Shaped], shape: ModelShape, source: str) -> None:
    """Raise StateError where `tensors`, as a file describes them, are no tuned state of the model.

    Others among them are left alone.
    """
    field = _matrix_field(shape, source)
    layers = _layers(tensors, source)
    if layers != set(range(shape.num_layers)):
        raise StateError(
            f"{source}: has time_state for layers {_ranges(layers)}; this model has layers 0 to {shape.num_layers - 1}"
        )
    for layer in range(shape.num_layers):
        name = tensor_name(layer)
        check_shape(tensors[name].shape, field.shape, f"{source}: {name}")


def state_from_tuned(
    tensors: Mapping[str, NDArray[Any]], shape: ModelShape, layout: Layout, source: str
) -> dict[str, F32]:
    """The initial state that `tensors` describe; other tensors among them are left alone.

    Raises StateError where a layer is missing or too many, and where a tensor does not fit the model.
    """
    check_tuned(tensors, shape, source)
    field = _matrix_field(shape, source)
    state = shape.initial_state()
    for layer in range(shape.num_layers):
        name = tensor_name(layer)
        wkv = check_array(tensors[name], field.shape, f"{source}: {name}")
        state[field.name][layer] = wkv if layout == "value_key" else wkv.transpose(0, 2, 1)
    return state


def tuned_from_state(state: State, shape: ModelShape, layout: Layout) -> dict[str, F32]:
    """The time_state tensors of a state. Its shifts are lost: the form has no place for them."""
    wkv = state[_matrix_field(shape, "export").name]  # [L, H, value, key]
    ordered = wkv if layout == "value_key" else wkv.transpose(0, 1, 3, 2)
    return {tensor_name(layer): np.ascontiguousarray(ordered[layer]) for layer in range(shape.num_layers)}


def tensor_name(layer: int) -> str:
    """The name of a layer's tensor."""
    return f"blocks.{layer}.att.time_state"


def _matrix_field(shape: ModelShape, source: str) -> StateField:
    """The field that time_state is the initial value of."""
    matrices = [field for field in shape.state_fields if field.kind is FieldKind.MATRIX]
    if len(matrices) != 1:
        raise StateError(f"{source}: a tuned state is one matrix a head; a {shape.version} state has no such field")
    return matrices[0]


def _layers(names: Iterable[str], source: str) -> set[int]:
    layers = {int(match[1]) for match in map(_NAME.fullmatch, names) if match}
    if not layers:
        raise StateError(f"{source}: holds no blocks.N.att.time_state tensors")
    return layers


def _ranges(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    gapless = len(ordered) == ordered[-1] - ordered[0] + 1
    return f"{ordered[0]} to {ordered[-1]}" if gapless else show_all([str(number) for number in ordered])
