"""What the readers of all file formats give: named tensors, each with a shape and a type, as the file stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.binary_file import FileStamp

MOST_DIMENSIONS: Final = 8
_MOST_BYTES: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape of a tensor as its file stores it, and the element type in which it is read.

    Raises ValueError for a shape that no array can have.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    block_type: str | None = None  # name of the blocks in which a row's numbers are stored; None = as `dtype`

    def __post_init__(self) -> None:
        if len(self.shape) > MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {len(self.shape)} dimensions; expected at most {MOST_DIMENSIONS}")
        if prod(max(size, 1) for size in self.shape) * self.dtype.itemsize > _MOST_BYTES:  # numpy refuses (0, 2**63)
            raise ValueError("a tensor is larger than any memory")

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class TensorSource(Protocol):
    """An open file of tensors."""

    @property
    def stamp(self) -> FileStamp:
        """The file's size and times when it was opened."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor of the file under the name that the file gives it."""
        ...

    def read(self, name: str) -> NDArray[Any]:
        """Return a copy of the tensor, whatever happens to the file afterwards. May have any strides.

        May be called from several threads. Raises KeyError for a name that is not in `tensors`, ModelError where the
        bytes are damaged or the file was truncated or written to since it was opened, ValueError after `close`.
        """
        ...

    def read_blocks(self, name: str) -> Blocks | None:
        """Return a copy of a matrix in its blocks; None for plain numbers, and for blocks of no known format.

        Raises as `read` does.
        """
        ...

    def close(self) -> None:
        """Close the file. Idempotent."""
        ...
