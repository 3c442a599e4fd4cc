"""What all trainers share: checks of the arguments of their methods, and documents packed for one call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rnn_engine.backward.trainer import Optimizer, TrainingDocument, TrainingState
from rnn_engine.errors import InvalidRequestError
from rnn_engine.types import F32, I32, FieldKind, ModelShape, State


@dataclass(frozen=True, slots=True, eq=False)
class PackedDocuments:
    """The documents of one call, one after another on one axis [T], as the token runs of a step."""

    inputs: I32  # [T] all tokens of each document except the last
    targets: I32  # [T] the token that follows each
    weights: F32  # [T] how much the prediction of each target counts
    lengths: tuple[int, ...]  # the number of inputs of each document

    @classmethod
    def of(cls, documents: Sequence[TrainingDocument]) -> PackedDocuments:
        """Pack `documents`, which `check_documents` has accepted."""
        return cls(
            np.concatenate([document.tokens[:-1] for document in documents]),
            np.concatenate([document.tokens[1:] for document in documents]),
            np.concatenate([document.weights[1:] for document in documents]),
            tuple(document.num_inputs for document in documents),
        )


def trained_fields(shape: ModelShape, *, trains_shifts: bool) -> tuple[str, ...]:
    """Return the names of the state fields that are trained: the matrices, and the token shifts if wanted."""
    kinds = {FieldKind.MATRIX, FieldKind.SHIFT} if trains_shifts else {FieldKind.MATRIX}
    return tuple(field.name for field in shape.state_fields if field.kind in kinds)


def state_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the fields of the model's state, for all layers."""
    return {field.name: (shape.num_layers, *field.shape) for field in shape.state_fields}


def check_optimizer(optimizer: Optimizer) -> None:
    """Raise InvalidRequestError if a setting of `optimizer` is out of range."""
    for name in ("beta1", "beta2"):
        value = getattr(optimizer, name)
        if not 0 <= value < 1:
            raise InvalidRequestError(f"optimizer {name}", value, "a number of at least 0 and less than 1")
    for name in ("epsilon", "max_norm"):
        value = getattr(optimizer, name)
        if not 0 < value < math.inf:
            raise InvalidRequestError(f"optimizer {name}", value, "a finite number greater than 0")


def check_documents(documents: Sequence[TrainingDocument], max_documents: int, max_tokens: int) -> None:
    """Raise InvalidRequestError if there are no documents, too many, or too long ones together."""
    if len(documents) == 0:
        raise InvalidRequestError("documents", list(documents), "at least one document")
    if len(documents) > max_documents:
        raise InvalidRequestError("documents", len(documents), f"at most {max_documents} documents in one call")
    num_inputs = sum(document.num_inputs for document in documents)
    if num_inputs > max_tokens:
        raise InvalidRequestError("tokens", num_inputs, f"at most {max_tokens} inputs over all documents of one call")


def check_training_state(state: TrainingState, shapes: Mapping[str, tuple[int, ...]], trained: Sequence[str]) -> None:
    """Raise InvalidRequestError unless `state` has arrays of these `shapes`, and moments of exactly those `trained`."""
    _check_arrays("state", state.state, shapes)
    _check_arrays("first moments", state.first, {name: shapes[name] for name in trained})
    _check_arrays("second moments", state.second, {name: shapes[name] for name in trained})
    for name, values in state.second.items():
        if values.min() < 0:
            raise InvalidRequestError(f"second moments {name}", float(values.min()), "no negative number")
    if state.num_updates < 0:
        raise InvalidRequestError("num_updates", state.num_updates, "at least 0")


def _check_arrays(name: str, arrays: State, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if arrays.keys() != shapes.keys():
        raise InvalidRequestError(name, sorted(arrays), f"the fields {sorted(shapes)}")
    for field, values in arrays.items():
        if values.shape != shapes[field] or values.dtype != np.float32:
            raise InvalidRequestError(f"{name} {field}", f"{values.dtype} {values.shape}", f"float32 {shapes[field]}")
        if not np.isfinite(values).all():
            bad = float(values[~np.isfinite(values)][0])
            raise InvalidRequestError(f"{name} {field}", bad, "finite numbers")
