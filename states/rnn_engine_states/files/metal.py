"""States in the files of rwkv-metal and SwiftRWKV, `.state.safetensors`, which name the base model by a fingerprint.

Tensors, all f32: `wkv` [L, 1, H, value, key], `tmix_shift` and `cmix_shift` [L, 1, 1, D]. Metadata: format, version,
kind (tuned, prompt or tuned+prompt), trained (the names of the tensors that were), base_fingerprint, note, and the
model's sizes n_layer, n_embd, n_head and head_size. See `rnn_engine.model.fingerprint.metal_fingerprint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError
from rnn_engine.tensor_files.safetensors_file import SafetensorsFile
from rnn_engine.tensor_files.source import show
from rnn_engine.types import F32, FieldKind, ModelShape, State, StateField
from rnn_engine_states.frozen import FrozenState, check_array, check_shape

_FORMAT: Final = "rwkv-state"
_VERSION: Final = "1"
_TENSORS: Final = ("wkv", "tmix_shift", "cmix_shift")


def is_metal_state(metadata: Mapping[str, str]) -> bool:
    """Return True if `metadata` of a safetensors file marks a file of rwkv-metal, of any format version."""
    return metadata.get("format") == _FORMAT


def metal_file(frozen: FrozenState, shape: ModelShape, base: str | None) -> tuple[dict[str, F32], dict[str, str]]:
    """Return a file's tensors and metadata. Raises StateError without `base`, rwkv-metal's fingerprint."""
    if base is None:
        raise StateError(
            f"rwkv-metal has no fingerprint of this RWKV {shape.version}; expected RWKV-7 in plain numbers"
        )
    fields = _fields(shape, "export")
    tensors = {
        name: np.ascontiguousarray(frozen.state[field.name]).reshape(size)
        for (name, field), size in zip(fields.items(), _sizes(shape, fields).values(), strict=True)
    }
    was_tuned = not frozen.last_tokens
    trained = _TENSORS if frozen.has_shifts else _TENSORS[:1]
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "kind": "tuned" if was_tuned else "prompt",
        "trained": ",".join(trained) if was_tuned else "",
        "base_fingerprint": base,
        "note": "rnn-engine",
    }
    return tensors, metadata | _contract(shape, fields)


def read_metal(file: SafetensorsFile, name: str, shape: ModelShape) -> State:
    """Read the state in an open file. Raises StateError if it does not fit the model. Errors call the file `name`."""
    metadata = file.metadata
    if metadata.get("version") != _VERSION:
        found = show(str(metadata.get("version")))
        raise StateError(f"{name}: format version {found!r} can't be read; expected {_VERSION!r}")
    fields = _fields(shape, name)
    for key, value in _contract(shape, fields).items():
        if metadata.get(key) != value:
            raise StateError(f"{name}: {key} is {show(str(metadata.get(key)))!r}; this model has {value}")
    state = shape.initial_state()
    for tensor, size in _sizes(shape, fields).items():
        if tensor not in file.tensors:
            raise StateError(f"{name}: has no tensor {tensor}; expected {', '.join(_TENSORS)}")
        check_shape(file.tensors[tensor].shape, size, f"{name}: {tensor}")
        values: NDArray[Any] = np.array(file.read(tensor))
        field = fields[tensor]
        state[field.name] = check_array(values, size, f"{name}: {tensor}").reshape(shape.num_layers, *field.shape)
    return state


def base_of(metadata: Mapping[str, str]) -> str | None:
    """Return rwkv-metal's fingerprint of the model for which a file was made."""
    return metadata.get("base_fingerprint")


def _fields(shape: ModelShape, source: str) -> dict[str, StateField]:
    """Return the state field for each tensor. Raises StateError if the model's state has other fields."""
    kinds = [FieldKind.MATRIX, FieldKind.SHIFT, FieldKind.SHIFT]
    fields = sorted(
        shape.state_fields, key=lambda field: field.kind is not FieldKind.MATRIX
    )  # stable: the matrix first
    if [field.kind for field in fields] != kinds:
        raise StateError(
            f"{source}: a file of rwkv-metal has one matrix a head and two token shifts, unlike a {shape.version} state"
        )
    return dict(zip(_TENSORS, fields, strict=True))


def _sizes(shape: ModelShape, fields: Mapping[str, StateField]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, which has an axis for sequences, and in shifts another for tokens."""
    extra = {name: (1,) if field.kind is FieldKind.MATRIX else (1, 1) for name, field in fields.items()}
    return {name: (shape.num_layers, *extra[name], *field.shape) for name, field in fields.items()}


def _contract(shape: ModelShape, fields: Mapping[str, StateField]) -> dict[str, str]:
    heads, size, _ = fields["wkv"].shape
    sizes = {"n_layer": shape.num_layers, "n_embd": shape.width, "n_head": heads, "head_size": size}
    return {name: str(number) for name, number in sizes.items()}
