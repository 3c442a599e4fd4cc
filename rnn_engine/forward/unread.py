"""Stand-ins with which a model is loaded without reading its weights, to count the device memory it would take.

They are a model of which only the header is read, and weight formats that pack no data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.weight_choice import FormatOf, stored_format
from rnn_engine.forward.weight_formats import WeightFormat
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import F32, ModelShape
from rnn_engine_shaders import Include


@dataclass(frozen=True, slots=True)
class UnreadModel:
    """A `Model` made from a file's header alone: its tensors are zeros of the right shapes and types.

    They take no memory.
    """

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


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A weight format with the block sizes of another one, `format`. Its `pack` returns no data."""

    format: WeightFormat

    @property
    def name(self) -> str:
        return self.format.name

    @property
    def block_columns(self) -> int:
        return self.format.block_columns

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return self.format.block_bytes

    @property
    def include(self) -> Include:
        return self.format.include

    @property
    def codes(self) -> str | None:
        return self.format.codes

    @property
    def packed(self) -> Include | None:
        return self.format.packed

    def pack(self, matrix: NDArray[Any] | Blocks) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        return {}

    def unpack(self, arrays: Mapping[str, NDArray[Any]], num_rows: int, num_columns: int) -> F32:
        return self.format.unpack(arrays, num_rows, num_columns)


def unpacked(model: UnreadModel, chosen: FormatOf) -> FormatOf:
    """Return a function from each matrix of `model` to the format that `chosen` gives it, which packs no data."""
    return lambda name: Unpacked(chosen(name) or stored_format(model.tensor(name).dtype, model.block_type(name)))
