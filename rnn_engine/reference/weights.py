"""A model's tensors in the one number format that a numpy forward pass computes in.

Knows no model version: names are looked up as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rnn_engine.types import ModelShape

Array: TypeAlias = NDArray[Any]
Block: TypeAlias = Callable[[str], Array]


class WeightSource(Protocol):
    """An open model file, or anything that hands out tensors like one."""

    @property
    def shape(self) -> ModelShape: ...

    def tensor(self, name: str) -> Array: ...


class Weights:
    """Tensors cast to `dtype` when first asked for, and kept.

    The source must stay usable as long as this object is used: tensors are fetched late, and those that already
    have `dtype` are not copied.
    """

    def __init__(self, source: WeightSource, dtype: DTypeLike = np.float32) -> None:
        self.shape = source.shape
        self.dtype = np.dtype(dtype)
        self._source = source
        self._cast: dict[str, Array] = {}

    def __call__(self, name: str) -> Array:
        """The whole tensor `name`."""
        if name not in self._cast:
            self._cast[name] = self._source.tensor(name).astype(self.dtype, copy=False)
        return self._cast[name]

    def block(self, layer: int) -> Block:
        """The tensors of one layer, by the rest of their names."""
        return lambda name: self(f"blocks.{layer}.{name}")

    def rows(self, name: str, ids: NDArray[np.integer[Any]]) -> Array:
        """Some rows of a table that is not worth casting as a whole."""
        rows: Array = self._source.tensor(name)[ids]
        return rows.astype(self.dtype)
