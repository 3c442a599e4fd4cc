"""A model's tensors in the one number format that a numpy forward pass computes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rnn_engine.types import ModelShape

Array: TypeAlias = NDArray[Any]
Lookup: TypeAlias = Callable[[str], Array]


class Weights:
    """Tensors that `fetch` finds by name, cast to `dtype` when first used, and kept.

    Matrices are kept as [in, out]: numpy multiplies a few rows by those a third faster.
    """

    def __init__(self, shape: ModelShape, fetch: Lookup, dtype: DTypeLike = np.float32) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._fetch = fetch
        self._cast: dict[str, Array] = {}
        self._transposed: dict[str, Array] = {}
        self._more_rows: Mapping[str, Array] = {}

    def __call__(self, name: str) -> Array:
        """The tensor `name` in its own orientation."""
        if name not in self._cast:
            self._cast[name] = self._fetch(name).astype(self.dtype, copy=False)
        return self._cast[name]

    def matmul(self, x: Array, name: str) -> Array:
        """x: [T, in] times the matrix `name` [out, in] -> [T, out]."""
        if name not in self._transposed:
            self._transposed[name] = np.ascontiguousarray(self._fetch(name).T, self.dtype)
        return x @ self._transposed[name]

    def rows(self, name: str, ids: NDArray[np.integer[Any]]) -> Array:
        """Some rows of a table that is not worth casting as a whole."""
        table, more = self._fetch(name), self._more_rows.get(name)
        if more is None:
            found: Array = table[ids]
            return found.astype(self.dtype)
        is_own = ids < len(table)
        rows = np.empty((len(ids), table.shape[1]), self.dtype)
        rows[is_own] = table[ids[is_own]]
        rows[~is_own] = more[ids[~is_own] - len(table)]
        return rows

    def with_rows(self, name: str, more: Array) -> Self:
        """Return the same weights with more rows at the end of a table."""
        extended = copy(self)
        extended._more_rows = {name: more}
        return extended

    def block(self, layer: int) -> Block:
        return Block(self, f"blocks.{layer}.")


class Block:
    """The weights of one layer, by what follows `blocks.N.` in their names."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self._weights = weights
        self._prefix = prefix

    def __call__(self, name: str) -> Array:
        return self._weights(self._prefix + name)

    def matmul(self, x: Array, name: str) -> Array:
        return self._weights.matmul(x, self._prefix + name)

    def rows(self, name: str, ids: NDArray[np.integer[Any]]) -> Array:
        return self._weights.rows(self._prefix + name, ids)
