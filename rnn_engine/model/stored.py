"""How a file stores a model's tensor: its name there, and the steps that convert it to the form of BlinkDL's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import BLOCK_FORMATS, Blocks
from rnn_engine.tensor_files.source import TensorInfo, show

Shape = tuple[int, ...]


class StoredStep(Protocol):
    """A step that converts a tensor from the form in which a file stores it towards the model's form."""

    def shape(self, stored: Shape) -> Shape:
        """Return an array's shape after this step. Raises ModelError, without the tensor's name, if that can't be."""

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return `array` after this step, as a view if possible."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A step that swaps the last two dimensions of a tensor; it leaves a vector unchanged."""

    def shape(self, stored: Shape) -> Shape:
        return stored if len(stored) < 2 else (*stored[:-2], stored[-1], stored[-2])

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array if array.ndim < 2 else array.swapaxes(-1, -2)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A step that selects one entry of a tensor's first dimension, which must have `length` entries."""

    index: int
    length: int

    def shape(self, stored: Shape) -> Shape:
        if stored[:1] != (self.length,):
            raise ModelError(f"is {list(stored)}; expected {self.length} as its first dimension")
        return stored[1:]

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        part: NDArray[Any] = array[self.index]
        return part


@dataclass(frozen=True, slots=True)
class Rows:
    """A step that reshapes a tensor to a matrix with rows of `length` numbers."""

    length: int

    def shape(self, stored: Shape) -> Shape:
        if prod(stored) % self.length:
            raise ModelError(f"has {prod(stored)} numbers; expected a multiple of {self.length}")
        return (prod(stored) // self.length, self.length)

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(-1, self.length)


@dataclass(frozen=True, slots=True)
class Split:
    """A step that splits a tensor's first dimension in two: [count * n, ...] becomes [count, n, ...]."""

    count: int

    def shape(self, stored: Shape) -> Shape:
        if not stored or stored[0] % self.count:
            raise ModelError(f"is {list(stored)}; expected a multiple of {self.count} as its first dimension")
        return (self.count, stored[0] // self.count, *stored[1:])

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(self.shape(array.shape))


@dataclass(frozen=True, slots=True)
class Reorder:
    """Cuts a tensor's first dimension into `len(order)` equal parts, of which `order[i]` becomes part i."""

    order: Sequence[int]

    def shape(self, stored: Shape) -> Shape:
        Split(len(self.order)).shape(stored)
        return stored

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return Split(len(self.order)).apply(array)[list(self.order)].reshape(array.shape)


@dataclass(frozen=True, slots=True)
class Scale:
    """A step that multiplies every number of a tensor by `factor` and keeps the element type."""

    factor: float

    def shape(self, stored: Shape) -> Shape:
        return stored

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        scaled: NDArray[Any] = (array * array.dtype.type(self.factor)).astype(array.dtype)
        return scaled


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """How a file stores one tensor of a model: its name there, and the steps that convert it to the model's tensor."""

    name: str  # in the file
    steps: tuple[StoredStep, ...] = ()

    @property
    def swapped(self) -> bool:
        return Swap() in self.steps

    def describe(self, info: TensorInfo) -> TensorInfo:
        """Return the shape and type of the tensor stored as `info`. Raises ModelError for a shape that does not fit."""
        shape, block_type = info.shape, info.block_type
        for step in self.steps:
            try:
                shape = step.shape(shape)
            except ModelError as error:
                raise ModelError(f"{show(self.name)} {error}") from error
            # Scaled blocks are still blocks, and the numbers of a part can become blocks again.
            is_part_of_blocks = isinstance(step, StoredPart) and (block_type or "").lower() in BLOCK_FORMATS
            block_type = block_type if isinstance(step, Scale) or is_part_of_blocks else None
        try:
            return TensorInfo(shape, info.dtype, block_type)
        except ValueError as error:
            raise ModelError(f"{show(self.name)}: {error}") from error

    def orient(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the tensor in the shape and orientation that the model has, from `array` as the file stores it."""
        for step in self.steps:
            array = step.apply(array)
        return array

    def orient_blocks(self, blocks: Blocks) -> Blocks | None:
        """Convert a matrix in blocks by all steps; None if one needs plain numbers, which `orient` then converts."""
        scaled: Blocks | None = blocks
        for step in self.steps:
            if scaled is None or not isinstance(step, Scale):
                return None
            scaled = scaled.scaled(step.factor)
        return scaled
