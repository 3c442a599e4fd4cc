"""What is added to single tokens' logits before a draw: the client's bias less the penalties for repeating."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import I32

F64: TypeAlias = NDArray[np.float64]

_FIRST_ROOM = 64  # tokens
_NO_TOKEN = np.iinfo(np.int32).max  # stands after the last token of the table


class Adjustments:
    """A table of the tokens that have a bias or have been seen, sorted by token, in arrays with room to grow.

    The penalties are ai00's: `presence` at a token's first sight and `frequency` at each; every token that is generated
    later multiplies all of it by `decay`. `earlier` are tokens that count as seen before the first draw, oldest first:
    each has `presence` once, and for each sight `frequency` decayed by its distance from the last.
    """

    def __init__(
        self, bias: Mapping[int, float], presence: float, frequency: float, decay: float, earlier: Sequence[int] = ()
    ) -> None:
        self._presence = presence
        self._frequency = frequency
        self._decay = decay
        self._penalises = presence != 0.0 or frequency != 0.0
        self._seen: set[int] = set()
        self._size = 0  # A
        self._tokens: I32 = np.full(_FIRST_ROOM, _NO_TOKEN, np.int32)  # [room] ascending; the last one is _NO_TOKEN
        self._bias: F64 = np.zeros(_FIRST_ROOM)  # [room]
        self._penalty: F64 = np.zeros(_FIRST_ROOM)  # [room]
        if bias or (self._penalises and len(earlier) > 0):
            self._fill(bias, earlier if self._penalises else ())

    def _fill(self, bias: Mapping[int, float], earlier: Sequence[int]) -> None:
        """Make the table of bias and earlier tokens at once: to insert a million one by one would stall every step."""
        biased = np.fromiter(bias, np.int32, len(bias))
        last_first = np.asarray(earlier, np.int32)[::-1]
        seen, places = np.unique(last_first, return_inverse=True)
        known = np.union1d(biased, seen)
        room = max(_FIRST_ROOM, 2 * len(known))
        self._seen = set(seen.tolist())
        self._size = len(known)
        self._tokens = np.full(room, _NO_TOKEN, np.int32)
        self._tokens[: len(known)] = known
        self._bias, self._penalty = np.zeros(room), np.zeros(room)
        self._bias[known.searchsorted(biased)] = np.fromiter(bias.values(), np.float64, len(bias))
        sights = self._frequency * np.power(self._decay, np.arange(len(last_first), dtype=np.float64))
        self._penalty[known.searchsorted(seen)] = self._presence + np.bincount(places, sights, len(seen))

    def __len__(self) -> int:
        return self._size

    @property
    def tokens(self) -> I32:
        """[A + 1] the tokens, ascending, and one that is greater than any token. Valid until `generated` is called."""
        return self._tokens[: self._size + 1]

    @property
    def values(self) -> F64:
        """[A + 1] what is added to each token's logit, and 0."""
        return self._bias[: self._size + 1] - self._penalty[: self._size + 1]

    def generated(self, token: int) -> None:
        """Decay every penalty by one token, then count `token` as seen."""
        if self._penalises:
            self._penalty[: self._size] *= self._decay
            self._see(token, self._frequency)

    def _see(self, token: int, frequency: float) -> None:
        place = self._place(token)
        if token not in self._seen:
            self._seen.add(token)
            self._penalty[place] += self._presence
        self._penalty[place] += frequency

    def _place(self, token: int) -> int:
        """Return the place of `token`, which is given one if it has none."""
        place = int(self.tokens.searchsorted(token))
        if self._tokens[place] != token:
            self._insert(place, token)
        return place

    def _insert(self, place: int, token: int) -> None:
        size = self._size = self._size + 1
        if size == len(self._tokens):
            self._tokens = np.append(self._tokens, np.full(size, _NO_TOKEN, np.int32))
            self._bias, self._penalty = (np.append(array, np.zeros(size)) for array in (self._bias, self._penalty))
        for array, value in ((self._tokens, token), (self._bias, 0.0), (self._penalty, 0.0)):
            array[place + 1 : size] = array[place : size - 1]
            array[place] = value
