"""How long steps take, and what follows from it: how many tokens a submit draws, and whether to submit one ahead."""

from __future__ import annotations

from rnn_engine.scheduler.batching import running_mean
from rnn_engine.scheduler.meter import StepTimes

DRAW_SECONDS = 0.02  # for which two submits may draw: an arrival, and who reads along, wait no longer
_MARGIN = 4.0  # times the host's part of a submit that the device is given to do meanwhile
_LEAST_WAIT = 0.1  # of a step's time; where the host waited less, the device may have been done before
SHORT_STEP = 0.02  # seconds; behind longer steps the time between two of them is nothing to speak of


class StepSeconds:
    """Running means over the steps of one scheduler."""

    def __init__(self) -> None:
        self._last_collect = 0.0
        self._decode: float | None = None  # of a step that runs one token of each sequence
        self._prompt_token: float | None = None  # of a token in the other steps
        self._host: float | None = None  # between two collected steps, where the device had one to run all the while

    def note(self, times: StepTimes, asked: float, now: float) -> float:
        """Take in a step that was `asked` for and collected `now`; return the seconds that it took after the last."""
        if times.begun < self._last_collect:
            self._host = running_mean(self._host, asked - self._last_collect)
        seconds = now - max(times.begun, self._last_collect)
        self._last_collect = now
        is_late = now - asked < _LEAST_WAIT * seconds
        if times.is_plain:
            self._decode = _mean(self._decode, seconds / times.num_steps, is_most=is_late)
        elif not times.is_decode:
            self._prompt_token = _mean(self._prompt_token, seconds / times.tokens, is_most=is_late)
        return seconds

    def count_draws(self, most: int) -> int:
        """Return how many tokens of each sequence one of two submits in flight draws: 1 to `most`.

        As few as keep the device at work while the host has to do with the other submit, for a sequence that ends
        leaves its slot empty for what is in flight.
        """
        if self._decode is None:
            return 1
        seconds = DRAW_SECONDS / 2 if self._host is None else min(_MARGIN * self._host, DRAW_SECONDS / 2)
        return max(min(int(seconds / max(self._decode, 1e-6)), most), 1)

    def is_short(self, num_tokens: int | None) -> bool:
        """Whether a step may be submitted ahead, or another one behind it. False where nothing is known.

        `num_tokens` are those of a step with prompts; None is one that runs one token of each sequence.
        """
        if num_tokens is None:
            return self._decode is not None and 2 * self._decode <= DRAW_SECONDS
        return self._prompt_token is not None and num_tokens * self._prompt_token < SHORT_STEP


def _mean(before: float | None, value: float, *, is_most: bool) -> float:
    """Return a running mean with a value taken in, or with the most that a value may be."""
    return before if is_most and before is not None and value > before else running_mean(before, value)
