"""Rules that keep single tokens from being drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from rnn_engine.sampling.adjustments import NEVER


class BadWords:
    """Forbids the last token of each of `words` where what was generated ends with the tokens before it."""

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
    """Forbids `tokens` until `count` tokens have been generated."""

    def __init__(self, tokens: Sequence[int], count: int) -> None:
        self._values = dict.fromkeys(tokens, NEVER)
        self._left = count

    def next(self) -> Mapping[int, float]:
        return self._values if self._left > 0 else {}

    def generated(self, token: int) -> None:  # noqa: ARG002
        self._left -= 1
