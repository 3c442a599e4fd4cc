"""The time of steps for those that others should not wait for: background requests, and prompts beside answers.

Background requests are such as the lines of batches. Other requests, those in the foreground, should hardly be slower
beside them than alone. So while any of these run, background sequences keep their slots, but run few tokens: steps may
take longer by a fixed share in the mean. Between two foreground requests, steps are short, so that the next one soon
finds the device free.

While one client gets an answer, the prompts of other clients may double the time of a step.

How long steps take is measured. So on a device on which a full step takes little longer than one of a single token,
background sequences and prompts take part in every step.
"""

from __future__ import annotations

from bisect import bisect_right

from rnn_engine.scheduler.meter import Meter, StepCosts, StepTimes

BESIDE_ANSWERS = 2.0  # times the time of a step without prompts, which one with prompts of other clients may take
LENGTHENING = 0.15  # of steps with foreground requests, in the mean: a share of their time
PROMPT_SECONDS = 1.0  # in which foreground prompts run alone; if they go on, background sequences take turns with them
QUIET_SECONDS = 10.0  # without foreground requests, after which steps may be as long as they are without such requests
_MOST_OF_PROMPT = 0.5  # of the mean time of a prompt: the time of a step for which the next request may have to wait
_LEAST_TIMES = 1.25  # times the time of one token, which such a step may take in any case


class TimeShares:
    """Decides how many tokens of background requests, and of prompts beside answers, run in a scheduler's steps."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._costs = StepCosts()
        self._last_foreground = float("-inf")  # when such a request came or ran, by the scheduler's clock
        self._prompts_since: float | None = None  # since when each step had a foreground prompt
        self._credit = 0.0  # seconds by which the next steps with foreground requests may take longer

    def note_foreground(self, now: float) -> None:
        """Record that a foreground request has come or runs at the time `now`."""
        self._last_foreground = now

    def note_step(self, times: StepTimes, now: float) -> None:
        """Update the mean costs of steps with one whose outcome has been processed at the time `now`."""
        self._costs.note(times.tokens, times.cost(now) / times.num_steps)

    def is_quiet(self, now: float) -> bool:
        """Return True if no foreground request has come or run for a while, so that none is expected soon."""
        return now - self._last_foreground > QUIET_SECONDS

    @property
    def longest_step(self) -> float:
        """The seconds that a step of background requests alone may take while foreground requests are expected."""
        return max(_MOST_OF_PROMPT * (self._meter.prompt_seconds or 0.0), _LEAST_TIMES * self._costs.estimate(1))

    def count_turn(self, now: float, least: int, wanted: int, *, has_prompt: bool) -> int:
        """Return how many background tokens run in a step of their own, which the other requests wait for.

        They are `least` to `wanted`, or 0 if the next step is not their turn. They get turns if foreground prompts
        follow one another for long, or they would wait for ever. `has_prompt` if the next step would have such a
        prompt.
        """
        if not has_prompt:
            self._prompts_since = None
            return 0
        if self._prompts_since is None:
            self._prompts_since = now
        if now - self._prompts_since < PROMPT_SECONDS or self._credit < self._costs.estimate(least):
            return 0
        return max(self._fitting(0, wanted, self._credit), least)

    def count_tokens(self, foreground: int, wanted: int) -> int:
        """Return how many of `wanted` background tokens may run in a step with `foreground` tokens of other requests.

        At least one may if `foreground` is 0. Otherwise they wait until there is time for all of them, or for as much
        as doubles the step, so that prompts are not cut into very small parts.
        """
        if foreground == 0:
            return max(self._fitting(0, wanted, self.longest_step), 1)
        alone, least = self._costs.estimate(foreground), self._costs.estimate(foreground + 1)
        enough = max(alone, least - alone)
        self._credit = min(self._credit, enough)
        if alone + self._credit >= self._costs.estimate(foreground + wanted):
            return wanted
        return self._fitting(foreground, wanted, alone + self._credit) if self._credit >= enough else 0

    def count_prompt_tokens(self, answers: int, least: int, wanted: int) -> int:
        """Return how many of `wanted` tokens of prompts run in a step with `answers` tokens of other clients' answers.

        They are `least` or more.
        """
        return max(self._fitting(answers, wanted, BESIDE_ANSWERS * self._costs.estimate(answers)), least)

    def charge(self, foreground: int, background: int, num_steps: int) -> None:
        """Record a step of `foreground` tokens and `background` tokens, which runs `num_steps` times."""
        alone = self._costs.estimate(foreground)
        longer = self._costs.estimate(foreground + background) - alone if background else 0.0
        self._credit += num_steps * (LENGTHENING * alone - longer)

    def _fitting(self, foreground: int, wanted: int, seconds: float) -> int:
        """Return how many of `wanted` tokens can be added to `foreground` in a step of at most `seconds`."""
        return bisect_right(range(1, wanted + 1), seconds, key=lambda more: self._costs.estimate(foreground + more))
