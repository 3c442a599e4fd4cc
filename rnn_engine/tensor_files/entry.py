"""What the writers of all file formats take: named tensors of known shape and type, read when their turn comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.tensor_files.source import TensorInfo


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor that is to be written under a name."""

    name: str
    info: TensorInfo
    read: Callable[[], NDArray[Any]]  # of the shape and type of `info`, or the bytes of its blocks

    def write(self, file: IO[bytes]) -> None:
        """Read the tensor and write its numbers, the last dimension fastest."""
        file.write(np.ascontiguousarray(self.read()).reshape(-1).view(np.uint8).data)
