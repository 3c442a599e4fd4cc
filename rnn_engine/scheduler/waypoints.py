"""States kept on the way of a long prompt, so that a later prompt that leaves it does not pay for all of it again.

Nobody knows where later prompts will leave this one: they change a paragraph, or a single token, since the first of
what follows a text may merge with the text's last. Waypoints bound what that costs.

The promise, while memory has room (`states/cache/eviction.py`) and as far as the prompt was run itself: whoever shares
half or more of a prompt that takes `LEAST_STEPS` full steps finds a state after nine tenths of what they share, or
later. So each waypoint lies at most a ninth of its position behind the kept state before it, the first one just before
the middle: seven or eight of them, `MOST_WAYPOINTS` at most, and fewer where other states are kept.

A waypoint ends a run, which costs a step. So one is made where a run ends anyway, if that is far enough from the state
before; else the run is cut as late as the promise allows, at the end of a line or a sentence if one is near. As steps
of few tokens cost nearly as much as full ones, a shorter prompt is cut once at most, so that the promise holds for
whoever shares 19 of 20 tokens; others lose about a step's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

LEAST_STEPS = 10  # full steps that a prompt takes for which the whole promise holds
LEAST_CUT_STEPS = 4  # full steps that a prompt still takes where it is cut at all
LEAST_LENGTH = 256  # tokens of a prompt that has any
MOST_WAYPOINTS = 16  # of one prompt, as follows from the distances

_MOST_LOOKED_AT = 64  # tokens before a cut, to find the end of a sentence
_SENTENCE_ENDS = tuple(mark.encode() for mark in ".!?。！？")

FindBreak: TypeAlias = Callable[[int, int], int | None]
"""Takes an earliest and a latest position, and returns the best one to cut the text, if there is one."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Where the next waypoint may lie: where a run ends from `earliest` on, or else at `cut`."""

    earliest: int
    cut: int | None  # None = no run is cut for it


class Waypoints:
    """The waypoints of one prompt, which are chosen as its runs are submitted."""

    def __init__(self, length: int, saved: int, points: Iterable[int], step_tokens: int, find_break: FindBreak) -> None:
        """`saved` of `length` tokens come from the cache; states are kept at the positions `points` anyway.

        A step runs at most `step_tokens`.
        """
        self._length = length
        self._points = sorted(point for point in points if saved < point < length)
        self._step = step_tokens
        self._find_break = find_break
        self._is_cut = length - saved >= LEAST_CUT_STEPS * step_tokens
        self._kept = saved  # a position whose state is or will be kept, the last one before the window
        self._window = self._next_window()

    @property
    def cut(self) -> int | None:
        """Where the next run has to end at the latest; None where that may be anywhere."""
        return None if self._window is None else self._window.cut

    def submit(self, end: int, *, is_point: bool) -> bool:
        """Note that a run up to `end` was submitted; return True if its state becomes a waypoint.

        `is_point` says that the state is kept anyway.
        """
        is_waypoint = not is_point and self._window is not None and self._window.earliest <= end
        if is_point or is_waypoint:
            self._kept = end
            self._window = self._next_window()
        return is_waypoint

    def _next_window(self) -> _Window | None:
        if self._length < LEAST_LENGTH:
            return None
        if self._length < LEAST_STEPS * self._step:
            return self._window_of_short()
        while (latest := self._latest()) < self._length:
            near = [point for point in self._points if self._kept < point <= latest]
            if not near or self._is_early(near[-1]):
                return self._window_up_to(latest)
            self._kept = near[-1]
        return None

    def _is_early(self, position: int) -> bool:
        """Return True if a state there is of too little use to a prompt that shares half of this one."""
        return 20 * position < 9 * self._length

    def _latest(self) -> int:
        """Return up to where the next state has to lie."""
        return (self._length - 1) // 2 if self._is_early(self._kept) else 10 * self._kept // 9

    def _window_up_to(self, latest: int) -> _Window:
        earliest = -(-9 * self._length // 20) if self._is_early(self._kept) else (self._kept + latest + 1) // 2
        cut = self._cut_before(earliest, latest)
        return _Window(max(earliest, cut - self._step + 1), cut)

    def _window_of_short(self) -> _Window | None:
        """Return that of a prompt that is cut once at most, at nine tenths of it or a little later."""
        earliest_cut, latest = -(-9 * self._length // 10), 19 * self._length // 20
        if self._kept >= earliest_cut or any(earliest_cut <= point <= latest for point in self._points):
            return None
        earliest = min(max(self._kept + self._step // 2, self._length // 2 - self._step + 1), earliest_cut)
        return _Window(earliest, self._cut_before(earliest_cut, latest) if self._is_cut else None)

    def _cut_before(self, earliest: int, latest: int) -> int:
        first = latest - min((latest - earliest) // 2, _MOST_LOOKED_AT)
        return self._find_break(first, latest) or latest


def find_break(tokens: Sequence[int], token_bytes: Callable[[int], bytes], earliest: int, latest: int) -> int | None:
    """Return the last end of a line from `earliest` to `latest`, else that of a sentence.

    None if the text has neither, or if there is no tokenizer.
    """
    sentence = None
    for position in range(latest, earliest - 1, -1):
        data = token_bytes(tokens[position - 1])
        if data.endswith(b"\n"):
            return position
        if sentence is None and data.rstrip(b" ").endswith(_SENTENCE_ENDS):
            sentence = position
    return sentence
