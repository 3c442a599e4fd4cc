"""What is added to single tokens' logits before a draw: the client's bias less the penalties for repeating.

The order is: the bias is added; a recent token's logit is divided by `repeat_penalty` where it is positive, else
multiplied; the presence and frequency penalties are taken off; then `TokenRule`s add to the next token alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import I32

F64: TypeAlias = NDArray[np.float64]

NEVER = -1e30
"""A bias below every logit: such a token is drawn only where nothing else is left. Finite, for sums to have a value."""

_FIRST_ROOM = 64  # tokens
_NO_TOKEN = np.iinfo(np.int32).max  # stands after the last token of the table


class TokenRule(Protocol):
    """Something that changes what is added to a few tokens' logits from draw to draw."""

    def next(self) -> Mapping[int, float]:
        """Return what is added to tokens' logits in the next draw."""
        ...

    def generated(self, token: int) -> None:
        """Take note of a token that was drawn."""
        ...


class Adjustments:
    """A table of the tokens that have a bias or have been seen, sorted by token, in arrays with room to grow.

    The penalties are ai00's: `presence` at a token's first sight and `frequency` at each; every token that is generated
    later multiplies all of it by `decay`. `earlier` are tokens that count as seen before the first draw, oldest first:
    each has `presence` once, and for each sight `frequency` decayed by its distance from the last.

    `repeat_penalty` is llama-server's: it holds for the tokens among the last `repeat_last_n` of `prompt` and what was
    generated after it; -1 is all of them.
    """

    def __init__(
        self,
        bias: Mapping[int, float],
        presence: float,
        frequency: float,
        decay: float,
        earlier: Sequence[int] = (),
        *,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 0,
        prompt: Sequence[int] = (),
        rules: Sequence[TokenRule] = (),
    ) -> None:
        self._presence = presence
        self._frequency = frequency
        self._decay = decay
        self._penalises = presence != 0.0 or frequency != 0.0
        self._repeat_penalty = repeat_penalty
        self._recent = None if repeat_penalty == 1.0 or repeat_last_n == 0 else _RecentTokens(repeat_last_n, prompt)
        self._rules = tuple(rules)
        self._seen: set[int] = set()
        self._size = 0  # A
        self._tokens: I32 = np.full(_FIRST_ROOM, _NO_TOKEN, np.int32)  # [room] ascending; the last one is _NO_TOKEN
        self._bias: F64 = np.zeros(_FIRST_ROOM)  # [room]
        self._penalty: F64 = np.zeros(_FIRST_ROOM)  # [room]
        self._by_rules: F64 = np.zeros(_FIRST_ROOM)  # [room] for the next draw
        self._is_recent: NDArray[np.bool_] = np.zeros(_FIRST_ROOM, np.bool_)  # [room]
        earlier = earlier if self._penalises else ()
        recent = () if self._recent is None else tuple(self._recent.counts)
        if len(bias) or len(earlier) or len(recent):
            self._fill(bias, earlier, recent)

    def _fill(self, bias: Mapping[int, float], earlier: Sequence[int], recent: Sequence[int]) -> None:
        """Make the table of all these tokens at once: to insert a million one by one would stall every step."""
        biased = np.fromiter(bias, np.int32, len(bias))
        last_first = np.asarray(earlier, np.int32)[::-1]
        seen, places = np.unique(last_first, return_inverse=True)
        known = np.unique(np.concatenate((biased, seen, np.asarray(recent, np.int32))))
        room = max(_FIRST_ROOM, 2 * len(known))
        self._seen = set(seen.tolist())
        self._size = len(known)
        self._tokens = np.full(room, _NO_TOKEN, np.int32)
        self._tokens[: len(known)] = known
        self._bias, self._penalty, self._by_rules = np.zeros(room), np.zeros(room), np.zeros(room)
        self._is_recent = np.zeros(room, np.bool_)
        self._is_recent[known.searchsorted(np.asarray(recent, np.int32))] = True
        values = np.fromiter(bias.values(), np.float64, len(bias))
        self._bias[known.searchsorted(biased)] = np.maximum(values, NEVER)
        sights = self._frequency * np.power(self._decay, np.arange(len(last_first), dtype=np.float64))
        self._penalty[known.searchsorted(seen)] = self._presence + np.bincount(places, sights, len(seen))

    def __len__(self) -> int:
        return self._size

    @property
    def may_change(self) -> bool:
        """Whether anything is added to any logit, now or later."""
        return self._size > 0 or self._penalises or self._recent is not None or len(self._rules) > 0

    @property
    def scales(self) -> bool:
        """Whether `repeat_penalty` counts, so that what is added depends on the logit and `values` are not all."""
        return self._recent is not None

    @property
    def tokens(self) -> I32:
        """[A + 1] the tokens, ascending, and one that is greater than any token.

        Valid until `generated` or `begin_draw` is called.
        """
        return self._tokens[: self._size + 1]

    @property
    def values(self) -> F64:
        """[A + 1] what is added to each token's logit, and 0. Not where `scales`."""
        end = self._size + 1
        values = self._bias[:end] - self._penalty[:end]
        return values + self._by_rules[:end] if self._rules else values

    def added(self, places: NDArray[np.intp], logits: F64) -> F64:
        """Return what is added to the tokens at `places` of `tokens`, whose logits under the model are `logits`."""
        if self._recent is None:
            return self.values[places]
        biased = logits + self._bias[places]
        biased = np.where(self._is_recent[places], self._scaled(biased), biased)
        with np.errstate(invalid="ignore"):  # what the model rules out stays so
            added: F64 = biased - self._penalty[places] + self._by_rules[places] - logits
        np.copyto(added, 0.0, where=~np.isfinite(logits))
        return added

    def bound_added(self, places: NDArray[np.intp], highest: float) -> F64:
        """Return values that bound what is added to tokens at `places` whose logits are at most `highest`, and a 0.

        Added to the logit `highest`, the positive ones raise the tokens' mass at least as much as what is added does,
        and the negative ones lower it at least as much.
        """
        if highest == -np.inf:  # nothing brings back what the model rules out
            return np.zeros(1)
        bias, less = self._bias[places], self._penalty[places] - self._by_rules[places]
        plain = bias - less
        recent = self._is_recent[places]
        if self._repeat_penalty >= 1.0:  # lowers a logit, by no known amount
            gains: F64 = np.maximum(plain, 0.0)
        else:  # raises it, to at most what becomes of the highest
            gains = np.logaddexp(0.0, self._scaled(highest + bias) - less - highest)
        losses = np.full(int(recent.sum()), -np.inf)
        return np.concatenate((plain[~recent], gains[recent], losses, (0.0,)))

    def adjusted(self, ids: I32, logits: F64) -> F64:
        """Return `logits` of the tokens `ids` with what is added to them."""
        places = self.tokens.searchsorted(ids)
        adjusted: F64 = logits + self.added(places, logits) * (self.tokens[places] == ids)
        return adjusted

    def begin_draw(self) -> None:
        """Ask the rules what they add to the next token. To be called before each draw."""
        if not self._rules:
            return
        self._by_rules[: self._size] = 0.0
        for rule in self._rules:
            for token, value in rule.next().items():
                place = self._place(token)
                self._by_rules[place] = max(self._by_rules[place] + value, NEVER)

    def generated(self, token: int) -> None:
        """Decay every penalty by one token, then count `token` as seen."""
        if self._penalises:
            self._penalty[: self._size] *= self._decay
            self._see(token, self._frequency)
        if self._recent is not None:
            gone = self._recent.append(token)
            if gone is not None:
                self._is_recent[self._place(gone)] = False
            self._is_recent[self._place(token)] = True
        for rule in self._rules:
            rule.generated(token)

    def _scaled(self, logits: F64) -> F64:
        scaled: F64 = np.where(logits <= 0.0, logits * self._repeat_penalty, logits / self._repeat_penalty)
        return scaled

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
            self._bias, self._penalty, self._by_rules = (
                np.append(array, np.zeros(size)) for array in (self._bias, self._penalty, self._by_rules)
            )
            self._is_recent = np.append(self._is_recent, np.zeros(size, np.bool_))
        for array, value in ((self._tokens, token), (self._bias, 0.0), (self._penalty, 0.0)):
            array[place + 1 : size] = array[place : size - 1]
            array[place] = value
        if self._rules:
            self._by_rules[place + 1 : size] = self._by_rules[place : size - 1]
            self._by_rules[place] = 0.0
        if self._recent is not None:
            self._is_recent[place + 1 : size] = self._is_recent[place : size - 1]
            self._is_recent[place] = False


class _RecentTokens:
    """The last `size` tokens of a sequence and how often each occurs; -1 is all of them."""

    def __init__(self, size: int, tokens: Sequence[int]) -> None:
        self._size = size
        kept = tokens if size < 0 else tokens[max(len(tokens) - size, 0) :]
        self._queue: deque[int] | None = None if size < 0 else deque(kept)
        self.counts = Counter(kept)

    def append(self, token: int) -> int | None:
        """Add a token; return one that occurs no more."""
        self.counts[token] += 1
        if self._queue is None:
            return None
        self._queue.append(token)
        if len(self._queue) <= self._size:
            return None
        oldest = self._queue.popleft()
        self.counts[oldest] -= 1
        if self.counts[oldest]:
            return None
        del self.counts[oldest]
        return oldest
