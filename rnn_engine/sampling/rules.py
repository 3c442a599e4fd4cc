"""Rules that penalise or forbid tokens: DRY against repetitions, bad words, and stop tokens that may not come yet.

DRY penalises a token that would continue a repetition of n >= `allowed_length` tokens. Its logit loses
`multiplier` * `base`^(n - `allowed_length`). The mathematics are llama.cpp's.
A repetition does not reach across a breaker. A breaker counts wherever its text occurs, even if it is cut into several
tokens. A token that holds a whole breaker is never penalised.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rnn_engine.sampling.adjustments import NEVER
from rnn_engine.types import I32

MOST_TOKENS = 4096  # that DRY looks at, since each costs time in every step
_LARGEST_LOG = 88.7228391  # of a penalty before `multiplier`


class Dry:
    """The DRY rule, which penalises tokens that continue a repetition within the last `last_n` of a text."""

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Sequence[str],
        tokens: Sequence[int],
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._multiplier = multiplier
        self._base = base
        self._allowed_length = allowed_length
        self._most_excess = int(_LARGEST_LOG / math.log(base)) if base > 1.000001 else 0
        self._window = MOST_TOKENS if last_n < 0 else min(last_n, MOST_TOKENS)
        self._breaks = _Breaks(breakers, token_bytes)
        self._tokens: I32 = np.zeros(2 * self._window + 1, np.int32)  # [room]
        self._repeated: I32 = np.zeros(2 * self._window + 1, np.int32)  # [room] how many tokens up to it repeat the end
        self._size = 0
        for token in tokens[max(len(tokens) - self._window, 0) :]:
            self.generated(token)

    def next(self) -> Mapping[int, float]:
        """Return the penalties, negative numbers by token id, of the tokens that would continue a repetition."""
        first = max(self._size - self._window, 0)
        count = self._size - first
        limit = min(self._breaks.tokens_since, count)
        if count <= self._allowed_length or limit < self._allowed_length:
            return {}
        lengths = np.minimum(self._repeated[first : self._size - 1], np.arange(1, count))
        lengths = np.minimum(lengths, limit)
        places = np.flatnonzero(lengths >= self._allowed_length)
        places = places[np.argsort(lengths[places], kind="stable")]  # of a token's repetitions the longest counts
        following = self._tokens[first + 1 + places].tolist()
        longest = dict(zip(following, lengths[places].tolist(), strict=True))
        return {token: self._change(length) for token, length in longest.items() if not self._breaks.holds(token)}

    def generated(self, token: int) -> None:
        self._breaks.generated(token)
        if self._size == len(self._tokens):
            kept = slice(self._size - self._window, self._size)
            self._tokens[: self._window] = self._tokens[kept]
            self._repeated[: self._window] = self._repeated[kept]
            self._size = self._window
        size = self._size
        longer = np.ones(size, np.int32)
        longer[1:] += self._repeated[: max(size - 1, 0)]
        self._repeated[:size] = longer * (self._tokens[:size] == token)
        self._tokens[size] = token
        self._size += 1

    def _change(self, length: int) -> float:
        excess = length - self._allowed_length
        if self._most_excess > 0:
            excess = min(excess, self._most_excess)
        return -self._multiplier * self._base**excess


class _Breaks:
    """Counts the tokens of a sequence since the last breaker, a text across which DRY finds no repetition."""

    def __init__(self, breakers: Sequence[str], token_bytes: Callable[[int], bytes]) -> None:
        self._breakers = tuple(breaker.encode() for breaker in breakers)
        self._token_bytes = token_bytes
        self._reach = max(map(len, self._breakers), default=1) - 1  # bytes before a token that a breaker may begin in
        self._end = b""
        self._holds: dict[int, bool] = {}
        self.tokens_since = 0

    def holds(self, token: int) -> bool:
        """Return True if the bytes of `token` contain a whole breaker."""
        if token not in self._holds:
            data = self._token_bytes(token)
            self._holds[token] = any(breaker in data for breaker in self._breakers)
        return self._holds[token]

    def generated(self, token: int) -> None:
        self.tokens_since += 1
        if self._reach == 0:
            ended = self.holds(token)
        else:
            before, self._end = self._end, self._end + self._token_bytes(token)
            ended = any(
                self._end.find(breaker, max(len(before) - len(breaker) + 1, 0)) >= 0 for breaker in self._breakers
            )
            self._end = self._end[-self._reach :]
        if ended:
            self.tokens_since = 0


class BadWords:
    """Forbids the last token of each of `words` if the generated text ends with its other tokens."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._single = {word[0]: NEVER for word in words if len(word) == 1}
        self._longer: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for word in words:
            if len(word) > 1:
                self._longer.setdefault(word[-2], []).append((tuple(word[:-1]), word[-1]))
        self._generated: deque[int] = deque(maxlen=max(map(len, words), default=1))

    def next(self) -> Mapping[int, float]:
        generated = tuple(self._generated)
        words = self._longer.get(generated[-1], ()) if generated else ()
        forbidden = {last: NEVER for beginning, last in words if generated[-len(beginning) :] == beginning}
        return {**self._single, **forbidden} if forbidden else self._single

    def generated(self, token: int) -> None:
        self._generated.append(token)


class NotBefore:
    """The rule that forbids certain tokens, such as stop tokens, until `count` tokens have been generated."""

    def __init__(self, tokens: Sequence[int], count: int) -> None:
        self._values = dict.fromkeys(tokens, NEVER)
        self._left = count

    def next(self) -> Mapping[int, float]:
        return self._values if self._left > 0 else {}

    def generated(self, token: int) -> None:  # noqa: ARG002
        self._left -= 1
