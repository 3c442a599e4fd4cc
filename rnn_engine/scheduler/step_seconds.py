"""How long steps take, and what follows from it: how many tokens a submit draws, and whether to submit one ahead."""

from __future__ import annotations

from rnn_engine.scheduler.batching import running_mean
from rnn_engine.scheduler.meter import StepTimes

DRAW_SECONDS = 0.02  # for which two submits may draw: an arrival, and who reads along, wait no longer
SHORT_STEP = 0.02  # seconds; behind longer steps the time between two of them is nothing to speak of


class StepSeconds:
    """Running means over the steps of one scheduler."""

    def __init__(self) -> None:
        self._last_collect = 0.0
        self._decode: float | None = None  # of a step that runs one token of each sequence
        self._prompt_token: float | None = None  # of a token in the other steps

    def note(self, times: StepTimes, now: float) -> float:
        """Take in a step that was collected `now`; return the seconds that it took, behind the one before it."""
        seconds = now - max(times.begun, self._last_collect)
        self._last_collect = now
        if times.is_decode:
            self._decode = running_mean(self._decode, seconds / times.num_steps)
        else:
            self._prompt_token = running_mean(self._prompt_token, seconds / times.tokens)
        return seconds

    def count_draws(self, most: int) -> int:
        """Return how many tokens of each sequence one of two submits in flight may draw: 1 to `most`."""
        if self._decode is None:
            return 1
        return max(min(int(DRAW_SECONDS / 2 / max(self._decode, 1e-6)), most), 1)

    def is_short(self, num_tokens: int | None) -> bool:
        """Whether a step may be submitted ahead, or another one behind it. False where nothing is known.

        `num_tokens` are those of a step with prompts; None is one that runs one token of each sequence.
        """
        if num_tokens is None:
            return self._decode is not None and 2 * self._decode <= DRAW_SECONDS
        return self._prompt_token is not None and num_tokens * self._prompt_token < SHORT_STEP
