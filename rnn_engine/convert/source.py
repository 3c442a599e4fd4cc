"""A model that is to be written, and the type in which each of its tensors is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.forward import Progress
from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.forward.weight_formats import FloatFormat
from rnn_engine.model import OpenModel
from rnn_engine.model.layout import TensorSpec
from rnn_engine.quantised import BLOCK_FORMATS, BlockFormat, Blocks, quantise
from rnn_engine.tensor_files.entry import TensorEntry
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import ModelShape

Transform: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]

F16: Final = np.dtype(np.float16)
F32: Final = np.dtype(np.float32)
_FLOATS: Final = "a --weights of f16, bf16 or f32"


def is_matrix(spec: TensorSpec) -> bool:
    """Whether a tensor has a weight format of its own; what has a number for each channel of a head has none."""
    return len(spec.dims) > 1 and "N" not in spec.dims


@dataclass(frozen=True, slots=True)
class Source:
    """A model that is to be written."""

    model: OpenModel
    specs: Sequence[TensorSpec]  # of the tensors that it has, in BlinkDL's names and orientation
    format_of: FormatOf  # of its matrices
    progress: Progress

    @property
    def shape(self) -> ModelShape:
        return self.model.shape

    def block_format(self, spec: TensorSpec) -> BlockFormat | None:
        """Return the format of the blocks in which a matrix is to be written; None for plain numbers.

        Raises ModelError for the matrices of adapters, which a device does not take in blocks.
        """
        if not is_matrix(spec):
            return None
        chosen = self.format_of(spec.name)
        name = self.model.tensors[spec.name].block_type if chosen is None else chosen.name
        found = BLOCK_FORMATS.get((name or "").lower())
        if found is not None and not spec.name.endswith(".weight"):
            raise ModelError(f"{spec.name} can't be saved in {name}; expected adapters=f16, bf16 or f32")
        return found

    def read_blocks(self, spec: TensorSpec, block_format: BlockFormat) -> Blocks:
        """Return a matrix in blocks: those that the model has, where they are of this format."""
        self._report(spec)
        blocks = self.model.blocks(spec.name)
        if blocks is not None and blocks.format == block_format:
            return blocks
        return quantise(block_format, self.model.tensor(spec.name))

    def dtype(self, spec: TensorSpec) -> np.dtype[Any]:
        """Return the float type in which a tensor is to be written; that of the model where none is chosen.

        Raises ModelError where another kind of format is chosen.
        """
        info = self.model.tensors[spec.name]
        chosen = self.format_of(spec.name) if is_matrix(spec) else None
        if chosen is None:
            if info.block_type is None:
                return info.dtype
            raise ModelError(f"{spec.name} is stored in blocks of {info.block_type}; expected {_FLOATS}")
        if not isinstance(chosen, FloatFormat):
            raise ModelError(f"{spec.name} can't be written as {chosen.name}; expected {_FLOATS}")
        return np.dtype(chosen.dtype)

    def entry(
        self,
        spec: TensorSpec,
        name: str,
        *,
        dtype: np.dtype[Any] | None = None,
        shape: Sequence[int] | None = None,
        transform: Transform = lambda tensor: tensor,
    ) -> TensorEntry:
        """Return a tensor under a name, in `dtype` where that is given; `transform` gives it another `shape`."""
        target = self.dtype(spec) if dtype is None else dtype
        info = TensorInfo(tuple(shape or self.model.tensors[spec.name].shape), target)
        return TensorEntry(name, info, lambda: transform(self.read(spec, target)))

    def read(self, spec: TensorSpec, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a tensor in a float type. Raises ModelError where that can't hold its numbers."""
        self._report(spec)
        return _cast(spec.name, self.model.tensor(spec.name), dtype)

    def _report(self, spec: TensorSpec) -> None:
        self.progress("writing", self.specs.index(spec), len(self.specs))

    def swapped(self, spec: TensorSpec, name: str, *, dtype: np.dtype[Any] | None = None) -> TensorEntry:
        """Return a tensor with its last two dimensions swapped."""
        *leading, rows, columns = self.model.tensors[spec.name].shape
        return self.entry(
            spec, name, dtype=dtype, shape=(*leading, columns, rows), transform=lambda tensor: tensor.swapaxes(-1, -2)
        )


def _cast(name: str, tensor: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if tensor.dtype == dtype:
        return tensor
    with np.errstate(over="ignore"):
        result = tensor.astype(dtype)
    if np.isfinite(tensor).all() and not np.isfinite(result).all():
        raise ModelError(f"{name} has numbers beyond the range of {dtype.name}; expected another type")
    return result
