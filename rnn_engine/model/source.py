"""What a model file looks like before anything is known of the model: named tensors, each with a shape and a type.

One module a file format implements `TensorSource`; conventions and versions are settled above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and element type of a tensor as its file stores it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class TensorSource(Protocol):
    """An open file of tensors. What `read` returned stays valid after `close`."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor of the file under the name that the file gives it."""
        ...

    def read(self, name: str) -> NDArray[Any]:
        """The tensor as stored; a view of the mapping where the file allows, else a copy. Not to be written to.

        Raises KeyError for a name that is not in `tensors`, ModelError where the bytes are damaged, ValueError after
        `close`.
        """
        ...

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        ...
