"""Sequences that run side by side, with their tokens packed on one axis T."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.reference.weights import Array, Weights

RunLayers: TypeAlias = Callable[[Weights, Array, Sequence[int], Mapping[str, Array]], tuple[Array, dict[str, Array]]]
"""A version in numpy up to the head: (weights, ids, lengths, states) -> (the last layer's output [T, D], new states).

B sequences run, `lengths[b]` tokens of each, one after the other in the token ids [T]. `states` holds [B, L, ...] a
field and is not changed.
"""


@dataclass(frozen=True, slots=True)
class PackedRuns:
    """Where each of B runs lies on the token axis."""

    lengths: NDArray[np.intp]  # [B], none is 0
    starts: NDArray[np.intp]  # [B]

    @classmethod
    def of(cls, lengths: Sequence[int]) -> PackedRuns:
        """Return the places of runs of these lengths, packed without gaps."""
        counts = np.asarray(lengths, np.intp)
        return cls(counts, np.cumsum(counts) - counts)

    def shift(self, x: Array, before: Array) -> Array:
        """Return the vector before each of x [T, D]; that of a run's first token is in `before` [B, D]."""
        previous = np.empty_like(x)
        previous[1:] = x[:-1]
        previous[self.starts] = before
        return previous

    def last(self, x: Array) -> Array:
        """Return the last vector of each run [B, D], which the run's next token will be shifted against."""
        last: Array = x[self.starts + self.lengths - 1]
        return last

    def walk(self, state: Array, step: Callable[[Array, NDArray[np.intp]], None]) -> Array:
        """Return what becomes of `state` [B, ...] token after token, for all runs side by side.

        `step` changes the states of the runs that still have a token, given those and the places of the tokens.
        """
        longest_first = np.argsort(-self.lengths, kind="stable")
        lengths, starts = self.lengths[longest_first], self.starts[longest_first]
        live = state[longest_first]
        for offset in range(lengths[0]):
            running = np.count_nonzero(lengths > offset)
            step(live[:running], starts[:running] + offset)
        after = np.empty_like(live)
        after[longest_first] = live
        return after
