"""What is kept of a checkpoint on the host: the recurrent tensors, in f32 or f16, and the last logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import F32, State

Precision: TypeAlias = Literal["f32", "f16"]

LARGEST_F16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """The arrays of one checkpoint, which nobody writes to any more."""

    state: Mapping[str, NDArray[Any]]  # field name -> [L, *StateField.shape] f32 or f16
    logits: F32 | None  # [V]

    @property
    def num_bytes(self) -> int:
        """The exact size of the arrays."""
        logits = 0 if self.logits is None else self.logits.nbytes
        return logits + sum(array.nbytes for array in self.state.values())

    def expand(self) -> State:
        """Return the state in f32."""
        return {name: array.astype(np.float32, copy=False) for name, array in self.state.items()}

    def stored_as(self, precision: Precision) -> Payload:
        """Return a payload in `precision`. Logits stay f32, since an exact repeat reads its probabilities from them."""
        if precision == "f32":
            return Payload(self.expand(), self.logits)
        return Payload({name: _halved(array) for name, array in self.state.items()}, self.logits)


def _halved(array: NDArray[Any]) -> NDArray[Any]:
    # A tensor with a value beyond f16's range stays as it is: infinity would poison all that follows.
    return array.astype(np.float16) if np.abs(array).max(initial=0) <= LARGEST_F16 else array
