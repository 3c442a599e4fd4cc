"""How far two states are apart, by field, layer and head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import F32, FieldKind, ModelShape, State

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class FieldDifference:
    """One field of two states. A column is a head of a matrix; any other field has one."""

    name: str
    kind: FieldKind
    norms: F64  # [L, columns] Euclidean norms in the first state
    other_norms: F64  # [L, columns] in the second one
    distances: F64  # [L, columns] norms of the difference

    @property
    def relative(self) -> F64:
        """The distances over the means of both norms: 0 where equal, 2 where one is zero or they are opposite."""
        means = (self.norms + self.other_norms) / 2
        return np.divide(self.distances, means, out=np.zeros_like(means), where=means > 0)


def state_difference(state: State, other: State, shape: ModelShape) -> Iterator[FieldDifference]:
    """Yield the difference of each field, in the shape's order."""
    for field in shape.state_fields:
        columns = field.shape[0] if field.kind is FieldKind.MATRIX else 1
        first, second = (_columns(one[field.name], columns) for one in (state, other))
        norms, other_norms, distances = map(_norms, (first, second, first - second))
        yield FieldDifference(field.name, field.kind, norms, other_norms, distances)


def _columns(array: F32, count: int) -> F64:
    """Return a field of all layers as [L, count, numbers]."""
    return array.reshape(len(array), count, -1).astype(np.float64)


def _norms(columns: F64) -> F64:
    return np.asarray(np.linalg.norm(columns, axis=-1), np.float64)
