"""A tensor of the model as its file has it: under which name, and the steps that make BlinkDL's tensor of it."""

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
    """A change of a tensor between its file and the model."""

    def shape(self, stored: Shape) -> Shape:
        """Return the shape that `apply` gives. Raises ModelError for one that it can't change; tells no name."""
        ...

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the changed tensor, a view where that is possible."""
        ...


@dataclass(frozen=True, slots=True)
class Swap:
    """The last two dimensions change places; a vector stays as it is."""

    def shape(self, stored: Shape) -> Shape:
        return stored if len(stored) < 2 else (*stored[:-2], stored[-1], stored[-2])

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array if array.ndim < 2 else array.swapaxes(-1, -2)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One of `length` along the first dimension."""

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
    """All numbers in rows of `length`."""

    length: int

    def shape(self, stored: Shape) -> Shape:
        if prod(stored) % self.length:
            raise ModelError(f"has {prod(stored)} numbers; expected a multiple of {self.length}")
        return (prod(stored) // self.length, self.length)

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(-1, self.length)


@dataclass(frozen=True, slots=True)
class Flat:
    """All numbers in one dimension."""

    def shape(self, stored: Shape) -> Shape:
        return (prod(stored),)

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(-1)


@dataclass(frozen=True, slots=True)
class Split:
    """The first dimension as two, the first of them of size `count`."""

    count: int

    def shape(self, stored: Shape) -> Shape:
        if not stored or stored[0] % self.count:
            raise ModelError(f"is {list(stored)}; expected a multiple of {self.count} as its first dimension")
        return (self.count, stored[0] // self.count, *stored[1:])

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(self.shape(array.shape))


@dataclass(frozen=True, slots=True)
class Reorder:
    """As many equal parts of the first dimension as `order` has, in this order."""

    order: Sequence[int]

    def shape(self, stored: Shape) -> Shape:
        Split(len(self.order)).shape(stored)
        return stored

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return Split(len(self.order)).apply(array)[list(self.order)].reshape(array.shape)


@dataclass(frozen=True, slots=True)
class Compute:
    """Every number is replaced by what `function` makes of it; the function keeps shape and element type."""

    function: Callable[[NDArray[Any]], NDArray[Any]]

    def shape(self, stored: Shape) -> Shape:
        return stored

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        return self.function(array)


@dataclass(frozen=True, slots=True)
class Scale:
    """Every number is multiplied by `factor`, and keeps its type."""

    factor: float

    def shape(self, stored: Shape) -> Shape:
        return stored

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        scaled: NDArray[Any] = (array * array.dtype.type(self.factor)).astype(array.dtype)
        return scaled


_KEEPS_BLOCKS: Final = (StoredPart, Scale)  # what is stored in blocks still is after these


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor of the model is kept, and how it is made of what the file has there."""

    name: str  # in the file
    steps: tuple[StoredStep, ...] = ()

    @property
    def swapped(self) -> bool:
        return Swap() in self.steps

    def describe(self, info: TensorInfo) -> TensorInfo:
        """Return what `orient` makes of a tensor. Raises ModelError where it can't be made."""
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
        """Return the model's matrix from the file's blocks; None where it has to be made of numbers."""
        scaled: Blocks | None = blocks
        for step in self.steps:
            if scaled is None or not isinstance(step, Scale):
                return None
            scaled = scaled.scaled(step.factor)
        return scaled
