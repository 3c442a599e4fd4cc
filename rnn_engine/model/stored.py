"""How a file stores a tensor of the model: its name there, and the steps that turn it into BlinkDL's tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.source import TensorInfo, show

Shape = tuple[int, ...]


class StoredStep(Protocol):
    """One step that turns a tensor in a file into the model's."""

    def shape(self, stored: Shape) -> Shape:
        """Return the shape that `apply` gives.

        Raises ModelError for a shape that the step can't change; its message does not name the tensor.
        """
        ...

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the changed tensor, as a view if possible."""
        ...


@dataclass(frozen=True, slots=True)
class Swap:
    """A step that swaps the last two dimensions; it leaves a vector unchanged."""

    def shape(self, stored: Shape) -> Shape:
        return stored if len(stored) < 2 else (*stored[:-2], stored[-1], stored[-2])

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array if array.ndim < 2 else array.swapaxes(-1, -2)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A step that takes one of `length` entries of the first dimension."""

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
    """A step that arranges all numbers in rows of `length`."""

    length: int

    def shape(self, stored: Shape) -> Shape:
        if prod(stored) % self.length:
            raise ModelError(f"has {prod(stored)} numbers; expected a multiple of {self.length}")
        return (prod(stored) // self.length, self.length)

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(-1, self.length)


@dataclass(frozen=True, slots=True)
class Flat:
    """A step that arranges all numbers in one dimension."""

    def shape(self, stored: Shape) -> Shape:
        return (prod(stored),)

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(-1)


@dataclass(frozen=True, slots=True)
class Split:
    """A step that splits the first dimension in two, the first of size `count`."""

    count: int

    def shape(self, stored: Shape) -> Shape:
        if not stored or stored[0] % self.count:
            raise ModelError(f"is {list(stored)}; expected a multiple of {self.count} as its first dimension")
        return (self.count, stored[0] // self.count, *stored[1:])

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(self.shape(array.shape))


@dataclass(frozen=True, slots=True)
class Reorder:
    """A step that cuts the first dimension into `len(order)` equal parts and puts them in this order."""

    order: Sequence[int]

    def shape(self, stored: Shape) -> Shape:
        Split(len(self.order)).shape(stored)
        return stored

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return Split(len(self.order)).apply(array)[list(self.order)].reshape(array.shape)


@dataclass(frozen=True, slots=True)
class Compute:
    """A step that applies `function` to all numbers; the function keeps the shape and the element type."""

    function: Callable[[NDArray[Any]], NDArray[Any]]

    def shape(self, stored: Shape) -> Shape:
        return stored

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return self.function(array)


@dataclass(frozen=True, slots=True)
class Scale:
    """A step that multiplies every number by `factor` and keeps the element type."""

    factor: float

    def shape(self, stored: Shape) -> Shape:
        return stored

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        scaled: NDArray[Any] = (array * array.dtype.type(self.factor)).astype(array.dtype)
        return scaled


_KEEPS_BLOCKS: Final = (StoredPart, Scale)  # steps after which blocks are still blocks


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The place of a model's tensor in its file, and the steps that make the tensor of what is stored there."""

    name: str  # in the file
    steps: tuple[StoredStep, ...] = ()

    @property
    def swapped(self) -> bool:
        return Swap() in self.steps

    def describe(self, info: TensorInfo) -> TensorInfo:
        """Return the shape and type of what `orient` makes of a tensor. Raises ModelError if a step can't change it."""
        shape, block_type = info.shape, info.block_type
        for step in self.steps:
            try:
                shape = step.shape(shape)
            except ModelError as error:
                raise ModelError(f"{show(self.name)} {error}") from error
            block_type = block_type if isinstance(step, _KEEPS_BLOCKS) else None
        try:
            return TensorInfo(shape, info.dtype, block_type)
        except ValueError as error:
            raise ModelError(f"{show(self.name)}: {error}") from error

    def orient(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the model's tensor from the file's."""
        for step in self.steps:
            array = step.apply(array)
        return array

    def orient_blocks(self, blocks: Blocks) -> Blocks | None:
        """Return the model's matrix from the file's blocks; None if it has to be made of plain numbers."""
        scaled: Blocks | None = blocks
        for step in self.steps:
            if scaled is None or not isinstance(step, Scale):
                return None
            scaled = scaled.scaled(step.factor)
        return scaled
