"""A named state whose values lie in the shared store: all that is told of it, without its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rnn_engine.errors import StateError
from rnn_engine.types import F32, InitialState
from states.frozen import FrozenState

_LOGITS: F32 = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class UnreadState(FrozenState):
    """A state to start from, once its values have been read."""

    bytes_there: int
    shifts_there: bool

    @classmethod
    def of(cls, frozen: FrozenState) -> UnreadState:
        """All of a state but its arrays."""
        has_logits = frozen.logits is not None
        return make_unread(
            frozen.digest, has_logits, frozen.num_tokens, frozen.last_tokens, frozen.num_bytes, frozen.has_shifts
        )

    @property
    def for_request(self) -> InitialState:
        raise StateError("the values of a state were not read from the store")

    @property
    def num_bytes(self) -> int:
        return self.bytes_there

    @property
    def has_shifts(self) -> bool:
        return self.shifts_there


def make_unread(
    digest: str,
    has_logits: bool,
    num_tokens: int | None,
    last_tokens: tuple[int, ...],
    num_bytes: int,
    has_shifts: bool,
) -> UnreadState:
    """A state of which this is known."""
    logits = _LOGITS if has_logits else None
    return UnreadState(digest, _Unread(), logits, num_tokens, last_tokens, num_bytes, has_shifts)


class _Unread(Mapping[str, F32]):
    """Arrays that raise where they are read."""

    def __getitem__(self, name: str) -> F32:
        raise StateError(f"{name} of a state was not read from the store")

    def __iter__(self) -> Iterator[str]:
        raise StateError("the values of a state were not read from the store")

    def __len__(self) -> int:
        raise StateError("the values of a state were not read from the store")
