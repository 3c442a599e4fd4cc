"""Counts and times of a scheduler's steps, and of its requests until their first token."""

from __future__ import annotations

from collections.abc import Callable

from rnn_engine.scheduler.step_seconds import StepTimes
from rnn_engine.telemetry import EngineCounters, Timing


class Meter:
    """Fills `counters`. For the scheduler's thread; `counters` may be read from any."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counters = EngineCounters()
        self._clock = clock
        self._resting = True
        self._busy_since = 0.0

    def rest(self) -> None:
        """Note that nothing is to be run, so that this time counts for nothing."""
        self._resting = True

    def resume(self) -> None:
        """Note that there is something to be run."""
        if self._resting:
            self._resting = False
            self._busy_since = self._clock()

    def submitted(self, step: StepTimes) -> None:
        step.submitted = self._clock()

    def collected(self, step: StepTimes, num_ahead: int, num_accepted: int) -> None:
        """Count a step that was collected and taken in.

        In it the device has run `num_ahead` tokens that it had drawn, and `num_accepted` of its drafts were drawn.
        """
        counters, last = self.counters, max(step.last, self._busy_since)
        num_steps = step.num_steps
        counters.steps += num_steps
        counters.step_tokens.add(step.tokens, num_steps)
        counters.step_device_seconds.add((step.collected - max(step.submitted, last)) / num_steps, num_steps)
        counters.step_host_seconds.add(max(step.submitted - last, 0.0) / num_steps, num_steps)
        counters.decode_tokens += step.decode_tokens + num_ahead
        counters.prefill_tokens += step.tokens - step.decode_tokens
        if step.drawn_tokens:
            share = step.drawn_tokens / (step.drawn_tokens + num_accepted)  # of the step's time, for each token
            num_tokens = step.drawn_tokens + num_ahead + num_accepted
            counters.inter_token_seconds.add(share * (step.collected - last) / num_steps, num_tokens)

    def read_whole_row(self) -> None:
        """Count a row that was read whole, since its candidates did not settle a draw."""
        self.counters.whole_rows += 1

    def failed(self) -> None:
        """Count a step that failed. What is done about it is no time of a step."""
        self.counters.failed_steps += 1
        self.rest()

    def started(self, arrived: float) -> float:
        """Count a request that gets its slot now; return that moment."""
        now = self._clock()
        self.counters.queue_seconds.add(now - arrived)
        return now

    def left_prompt(self, arrived: float, started: float, max_tokens: int) -> Timing:
        """Count a request whose prompt has been run now, and the time to its first token if it asks for any."""
        now = self._clock()
        if max_tokens > 0:
            self.counters.first_token_seconds.add(now - arrived)
        return Timing(arrived, started, now)
