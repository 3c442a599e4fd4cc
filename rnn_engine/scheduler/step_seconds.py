"""How long steps take, and what follows from it: how many tokens a submit draws, and whether to submit one ahead."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine.scheduler.batching import TokenDemand, running_mean
from rnn_engine.scheduler.member import DECODE, TAKE_IN, DraftDemand

DRAW_SECONDS = 0.02  # for which two submits may draw: an arrival, and who reads along, wait no longer
_MARGIN = 4.0  # times the host's part of a submit that the device is given to do meanwhile
_LEAST_WAIT = 0.1  # of a step's time; where the host waited less, the device may have been done before
SHORT_STEP = 0.02  # seconds; behind longer steps the time between two of them is nothing to speak of


class StepTimes:
    """What a step runs, and when it was submitted and collected."""

    __slots__ = (
        "begun",
        "collected",
        "decode_tokens",
        "drawn_tokens",
        "last",
        "num_runs",
        "num_steps",
        "submitted",
        "tokens",
    )

    def __init__(self, begun: float, demands: Sequence[TokenDemand], counts: Sequence[int], num_steps: int) -> None:
        """`num_steps` are run one after another, each but the first one of tokens that the device has drawn."""
        self.begun = begun
        self.submitted = begun
        self.last = 0.0  # when the step before was collected; as the next, it is known when this one is
        self.collected = 0.0
        self.num_steps = num_steps
        self.num_runs = len(counts)
        self.tokens = sum(counts)
        self.drawn_tokens = demands.count(DECODE)  # by sequences that have drawn one before
        self.decode_tokens = self.drawn_tokens + demands.count(TAKE_IN)
        if self.tokens > len(demands):
            drafts = [count for demand, count in zip(demands, counts, strict=True) if isinstance(demand, DraftDemand)]
            self.drawn_tokens += len(drafts)
            self.decode_tokens += sum(drafts)

    @property
    def seconds(self) -> float:
        """How long the step took after the one before."""
        return self.collected - max(self.begun, self.last)

    @property
    def was_ahead(self) -> bool:
        """Whether it was submitted before the step before was collected."""
        return self.begun < self.last

    @property
    def is_plain(self) -> bool:
        """Whether each of its runs is of one token that was drawn."""
        return self.is_decode and self.tokens == self.num_runs

    @property
    def is_decode(self) -> bool:
        """Whether it runs tokens that were drawn, and none of a prompt."""
        return self.decode_tokens == self.tokens


class StepSeconds:
    """When the steps of one scheduler were collected, and running means over them."""

    def __init__(self) -> None:
        self._last_collect = 0.0
        self._decode: float | None = None  # of a step that runs one token of each sequence
        self._prompt_token: float | None = None  # of a token in the other steps
        self._host: float | None = None  # between two collected steps, where the device had one to run all the while

    def note(self, times: StepTimes, asked: float, now: float) -> None:
        """Note that a step was `asked` for and collected, or has failed, `now`."""
        times.last, times.collected = self._last_collect, now
        if times.was_ahead:
            self._host = running_mean(self._host, asked - times.last)
        self._last_collect = now
        is_late = now - asked < _LEAST_WAIT * times.seconds
        if times.is_plain:
            self._decode = _mean(self._decode, times.seconds / times.num_steps, is_most=is_late)
        elif not times.is_decode:
            self._prompt_token = _mean(self._prompt_token, times.seconds / times.tokens, is_most=is_late)

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
