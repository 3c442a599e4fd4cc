"""What a sequence starts from instead of the fill values: read-only arrays, and a digest that tells them apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rnn_engine.types import F32, InitialState, ModelShape, State
from states.checks import check_array, check_state

NO_INITIAL_STATE = "none"
"""The root of sequences that start from the fill values."""

MAX_LAST_TOKENS = 32
"""How many of the tokens that a state has taken in are remembered: enough for any separator of records."""


@dataclass(frozen=True, slots=True, eq=False)
class FrozenState:
    """A state to start from. Its arrays are read-only: names, sequences and the cache share them."""

    digest: str  # of the state's values, from which the logits follow: equal for equal states
    state: State
    logits: F32 | None  # [V] those after the last token, where they are known
    num_tokens: int | None  # taken in; 0 for a tuned state, None where some were and nobody told how many
    last_tokens: tuple[int, ...]  # the last of them, as far as they are known

    @property
    def for_request(self) -> InitialState:
        """The state as a request takes it. The cache keeps what follows under the digest, not under a name."""
        return InitialState(self.digest, self.state, self.logits)

    @property
    def num_bytes(self) -> int:
        """The exact size of the arrays."""
        return sum(array.nbytes for array in self.state.values()) + (0 if self.logits is None else self.logits.nbytes)

    @property
    def has_shifts(self) -> bool:
        """Whether the token shifts are set too; a tuned state leaves them at zero."""
        return _has_shifts(self.state)


def freeze_state(
    state: State,
    shape: ModelShape,
    source: str,
    *,
    logits: F32 | None = None,
    num_tokens: int = 0,
    last_tokens: Sequence[int] = (),
) -> FrozenState:
    """Check and copy arrays. Raises StateError, which begins with `source`, where they do not fit the model.

    `num_tokens` may be 0 where it is not known: a state whose shifts are set has taken in some all the same.
    """
    checked = check_state(state, shape, source)
    kept = {name: _read_only(array) for name, array in checked.items()}
    if logits is not None:
        logits = _read_only(check_array(logits, (shape.vocab_size,), f"{source}: logits"))
    known = None if num_tokens == 0 and _has_shifts(kept) else num_tokens
    return FrozenState(_digest(kept), kept, logits, known, tuple(last_tokens)[-MAX_LAST_TOKENS:])


def _has_shifts(state: State) -> bool:
    return any(bool(array.any()) for name, array in state.items() if name.endswith("_shift"))


def _read_only(array: F32) -> F32:
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def _digest(state: State) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(state[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
