"""A model of which only the header is read, to count the device memory that it would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import ModelShape


@dataclass(frozen=True, slots=True)
class UnreadModel:
    """A `Model` of a file's header alone: its tensors are zeros of their shapes and types, which take no memory."""

    shape: ModelShape
    tensors: Mapping[str, TensorInfo]  # in BlinkDL's names and orientation

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def has(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> NDArray[Any]:
        info = self.tensors[name]
        return np.broadcast_to(np.zeros((), info.dtype), info.shape)

    def block_type(self, name: str) -> str | None:
        return self.tensors[name].block_type

    def matrix(self, name: str, *, transposed: bool = False) -> NDArray[Any]:
        return self.tensor(name).T if transposed else self.tensor(name)
