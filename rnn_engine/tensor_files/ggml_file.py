"""What the files of llama.cpp and rwkv.cpp have in common: tensors in the types of ggml, each in one piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.binary_file import BinaryFile, FileStamp
from rnn_engine.tensor_files.gguf_blocks import keeps_blocks, read_blocks
from rnn_engine.tensor_files.gguf_types import ElementType
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.source import TensorInfo


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor's bytes are, and how they are stored."""

    type: ElementType
    start: int
    num_bytes: int


class GgmlFile(ABC):
    """An open file. Closes `file` with itself. Tensors have their dimensions in numpy's order, the fastest last.

    Numbers in blocks are read as f32.
    """

    def __init__(self, file: BinaryFile) -> None:
        self._file = file
        self._tensors: dict[str, TensorInfo] = {}
        self._places: dict[str, _Place] = {}

    @property
    def stamp(self) -> FileStamp:
        return self._file.stamp

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> NDArray[Any]:
        place = self._places[name]
        return place.type.decode(self._file.read(place.start, place.num_bytes), self._tensors[name].shape)

    def read_blocks(self, name: str) -> Blocks | None:
        info, place = self._tensors[name], self._places[name]
        if len(info.shape) != 2 or not keeps_blocks(place.type.name):
            return None
        return read_blocks(place.type.name, self._file.read(place.start, place.num_bytes), info.shape)

    def close(self) -> None:
        self._file.close()

    def _add(self, name: str, dimensions: tuple[int, ...], element: ElementType, start: int) -> int:
        """Take in a tensor that begins at byte `start`, its fastest dimension first; return the byte where it ends.

        Raises ModelError where it can't be there.
        """
        if dimensions[0] % element.block_size:
            raise self._damaged(
                f"tensor {show(name)} has rows of {dimensions[0]} numbers; expected a multiple of "
                f"{element.block_size} for {element.name}"
            )
        num_bytes = prod(dimensions) // element.block_size * element.block_bytes
        self._check_end(start, num_bytes, f"tensor {show(name)}")
        try:
            info = TensorInfo(dimensions[::-1], element.dtype, element.name if element.is_block else None)
        except ValueError as error:
            raise self._damaged(f"tensor {show(name)}: {error}") from error
        self._tensors[name], self._places[name] = info, _Place(element, start, num_bytes)
        return start + num_bytes

    def _check_end(self, start: int, num_bytes: int, what: str) -> None:
        """Raise ModelError where `what` would not end within the file."""
        if start + num_bytes > self._file.stamp.size:
            raise self._damaged(
                f"{what} has {num_bytes} bytes from {start} on; expected an end within the {self._file.stamp.size} "
                "bytes of the file"
            )

    @abstractmethod
    def _damaged(self, what: str) -> ModelError:
        """Return the error that says of which kind the file is, and what is wrong with it."""
