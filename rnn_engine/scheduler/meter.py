"""Counts and times of a scheduler's steps, and of its requests until their first token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rnn_engine.scheduler.batching import TokenDemand
from rnn_engine.scheduler.member import DECODE, TAKE_IN, DraftDemand
from rnn_engine.telemetry import EngineCounters, Timing


class StepTimes:
    """When a step was submitted, and what it runs."""

    __slots__ = ("begun", "decode_tokens", "drawn_tokens", "num_runs", "num_steps", "submitted", "tokens")

    def __init__(self, begun: float, demands: Sequence[TokenDemand], counts: Sequence[int], num_steps: int) -> None:
        """`num_steps` are run one after another, each but the first one of tokens that the device has drawn."""
        self.begun = begun
        self.submitted = begun
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
    def is_plain(self) -> bool:
        """Whether each of its runs is of one token that was drawn."""
        return self.is_decode and self.tokens == self.num_runs

    @property
    def is_decode(self) -> bool:
        """Whether it runs tokens that were drawn, and none of a prompt."""
        return self.decode_tokens == self.tokens


class Meter:
    """Fills `counters`. For the scheduler's thread; `counters` may be read from any."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counters = EngineCounters()
        self._clock = clock
        self._resting = True
        self._busy_since = 0.0
        self._last_collect = 0.0

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

    def collected(self, step: StepTimes, now: float, num_ahead: int) -> None:
        """Count a step whose read-out has come, in which the device has run `num_ahead` tokens that it had drawn."""
        counters, last = self.counters, max(self._last_collect, self._busy_since)
        num_steps = step.num_steps
        counters.steps += num_steps
        counters.step_tokens.add(step.tokens, num_steps)
        counters.step_device_seconds.add((now - max(step.submitted, last)) / num_steps, num_steps)
        counters.step_host_seconds.add(max(step.submitted - last, 0.0) / num_steps, num_steps)
        counters.decode_tokens += step.decode_tokens + num_ahead
        counters.prefill_tokens += step.tokens - step.decode_tokens
        if step.drawn_tokens:
            counters.inter_token_seconds.add((now - last) / num_steps, step.drawn_tokens + num_ahead)
        self._last_collect = now

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
