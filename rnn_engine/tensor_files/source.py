"""What the readers and writers of all model file formats share: named tensors of known shape and type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.binary_file import ByteSource

MOST_DIMENSIONS: Final = 8
_MOST_BYTES: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The shape of a tensor as its file stores it, and the element type in which it is read.

    Raises ValueError for a shape that no array can have.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    block_type: str | None = None  # the blocks in which a row's numbers are stored; None: stored as `dtype`

    def __post_init__(self) -> None:
        if len(self.shape) > MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {len(self.shape)} dimensions; expected at most {MOST_DIMENSIONS}")
        if prod(max(size, 1) for size in self.shape) * self.dtype.itemsize > _MOST_BYTES:  # numpy refuses (0, 2**63)
            raise ValueError("a tensor is larger than any memory")

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


ALL_ROWS: Final = slice(None)


def span_of_rows(shape: tuple[int, ...], num_bytes: int, rows: slice) -> tuple[int, int, tuple[int, ...]]:
    """Return where rows of a tensor of `num_bytes` begin, in bytes from its start, their bytes and their shape."""
    if not shape:
        return 0, num_bytes, shape
    start, stop, _ = rows.indices(shape[0])
    row_bytes = num_bytes // max(1, shape[0])
    return start * row_bytes, (stop - start) * row_bytes, (stop - start, *shape[1:])


class TensorSource(ABC):
    """Base class of open model files, from which named tensors are read."""

    tensors: Mapping[str, TensorInfo]  # the shape and type of every tensor in the file, under its name there

    def __init__(self, file: ByteSource) -> None:
        """Read from `file`, which `close` closes. The subclass sets `tensors`."""
        self._file = file
        self.stamp = file.stamp  # the file's size and times when it was opened, by which a change of it is noticed

    def reads_rows(self, name: str) -> bool:  # noqa: ARG002
        """Return True if `read` takes no longer for some rows than their share of the whole tensor."""
        return True

    @abstractmethod
    def read(self, name: str, rows: slice = ALL_ROWS) -> NDArray[Any]:
        """Return a copy of some rows of the tensor `name`, which no later change of the file affects.

        A row is an entry of the first dimension. The copy may have any strides.

        May be called from several threads. Raises KeyError for a name that is not in `tensors`. Raises ModelError if
        the bytes are damaged, or if the file was truncated or written to since it was opened. Raises ValueError after
        `close`.
        """

    def read_blocks(self, name: str, rows: slice = ALL_ROWS) -> Blocks | None:  # noqa: ARG002
        """Return a copy of some rows of a quantised matrix in its blocks.

        Returns None for plain numbers and blocks of an unknown format. Raises as `read` does.
        """
        return None

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


# The input of the writers of all file formats: named tensors of known shape and type, each read just before it is
# written.


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor for the writer of a model file: its name, its shape and type, and a function that reads it."""

    name: str
    info: TensorInfo
    read: Callable[[], NDArray[Any]]  # of the shape and type of `info`, or the bytes of its blocks

    def write(self, file: IO[bytes]) -> None:
        """Read the tensor and write its numbers to `file`, the last dimension fastest."""
        file.write(np.ascontiguousarray(self.read()).reshape(-1).view(np.uint8).data)


# Format text from a file for error messages: cut it, make it printable, and list only the first of many items.

_MOST_ITEMS: Final = 6
_MOST_CHARACTERS: Final = 120


def show(text: str) -> str:
    """Return `text` from a file for an error message: cut to 120 characters, and escaped if it is not printable."""
    cut = text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
    return cut if cut.isprintable() else ascii(cut)


def show_all(items: Sequence[str]) -> str:
    """Join the first few of `items`, for an error message, and add the number of the others."""
    shown = "; ".join(show(item) for item in items[:_MOST_ITEMS])
    return shown if len(items) <= _MOST_ITEMS else f"{shown}; and {len(items) - _MOST_ITEMS} more"


def count(items: Sequence[str], noun: str) -> str:
    """Format the number of items with the noun for them: "1 tensor", "2 tensors"."""
    return f"{len(items)} {noun}" if len(items) == 1 else f"{len(items)} {noun}s"
