"""Counters of an engine, the times of its requests, and its health: plain values, read on demand."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Literal, Self, TypeAlias

from rnn_engine.errors import EngineClosedError, OverloadedError, StepError, TimeLimitError, UnavailableError

HealthStatus: TypeAlias = Literal["ok", "checking", "recovering", "stalled", "closing", "failed"]


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an engine at one moment: its status, the reason and how long it has lasted.

    `checking`: something failed, and one token is run to see whether the device answers. `recovering`: the device is
    opened again. `stalled`: the device has not answered for a long time. `closing`: the engine is being closed.
    `failed`: it has stopped by itself, for good.
    """

    status: HealthStatus = "ok"
    reason: str | None = None  # None if the status is ok
    seconds: float = 0.0  # for how long it has had this status, if known
    retry_after: float = 1.0  # seconds after which a refused request may be sent again

    def check(self) -> None:
        """Raise UnavailableError if a new request would have to wait until the device works again."""
        if self.status in ("recovering", "stalled"):
            raise UnavailableError(self.reason or self.status, self.retry_after)


MASK_SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.1)
STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
WAIT_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REQUEST_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
REQUEST_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class Histogram:
    """Counts of values by range, and their sum. One thread adds; another may miss the latest value."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Create an empty histogram with a range up to each of the ascending `bounds`, and a last range above them."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


class Outcome(StrEnum):
    """How a request to an engine ended."""

    STOP = "stop"
    LENGTH = "length"
    ABANDONED = "abandoned"  # its reader left
    FAILED_STEP = "failed_step"
    OVERLOADED = "overloaded"  # refused because the queue was full, or ended after waiting too long in it
    TIMED_OUT = "timed_out"  # before its first token
    UNAVAILABLE = "unavailable"  # the device was being opened again, or did not answer
    CLOSED = "closed"  # the engine was closed, or stopped
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SlotUse:
    """The request in one slot, of a mix in each state's, at one moment, and how many of its tokens have run."""

    slot: int
    request: int  # a number that no other request of the engine has
    scope: str  # of the cache; shows whose request it is
    paused: bool  # its reader is far behind
    prompt_tokens: int
    cached_tokens: int  # of the prompt, that were not run
    run_tokens: int  # of prompt and answer, cached ones included: the state's position
    generated_tokens: int
    max_tokens: int


class EngineCounters:
    """An engine's counters and histograms since its start, for any thread, perhaps of neighbouring moments."""

    def __init__(self) -> None:
        # Written by the scheduler's thread.
        self.steps = 0  # that were collected
        self.failed_steps = 0  # that were not submitted, or gave no read-out
        self.device_reopens = 0  # after which the device answered again
        self.suspensions = 0  # of requests that gave their slots to another client before their end
        self.unsound_runs = 0  # whose logits were not finite
        self.prefill_tokens = 0  # that the device has run of prompts
        self.decode_tokens = 0  # that the device has run at decode
        self.generated_tokens = 0
        self.draft_tokens = 0  # that were run before it was known whether they would be drawn
        self.accepted_tokens = 0  # those of them that were drawn
        self.whole_rows = 0  # of logits that were read because the candidates did not settle a draw
        self.step_device_seconds = Histogram(STEP_SECONDS)  # from the submit until the read-out is on the host
        self.step_host_seconds = Histogram(STEP_SECONDS)  # before the submit, while the device has nothing to do
        self.step_tokens = Histogram(STEP_TOKENS)
        self.inter_token_seconds = Histogram(STEP_SECONDS)
        self.queue_seconds = Histogram(WAIT_SECONDS)  # until a request gets a slot
        self.first_token_seconds = Histogram(WAIT_SECONDS)  # from a request's arrival
        self.mask_seconds = Histogram(MASK_SECONDS)  # to find the tokens that may come next, while the device runs
        self.mask_wait_seconds = 0.0  # that steps have waited for masks
        self.late_mask_seconds = Histogram(STEP_SECONDS)  # that requests have waited for masks outside of steps
        # Written by the threads that compile grammars, one at a time.
        self.grammar_compile_seconds = Histogram(WAIT_SECONDS)  # of each grammar that was not kept, wrong ones included
        # Written by the event loop's thread.
        self.request_seconds = Histogram(REQUEST_SECONDS)  # of requests that came to their end
        self.prompt_tokens = Histogram(REQUEST_TOKENS)  # of requests whose prompt was run, cached ones included
        self.completion_tokens = Histogram(REQUEST_TOKENS)  # of requests that came to their end
        self.cached_tokens = 0  # of `prompt_tokens`, that were not run
        self.outcomes = dict.fromkeys(Outcome, 0)


@dataclass(frozen=True, slots=True)
class Timing:
    """The times at which a request passed from one phase to the next, in seconds of `time.monotonic`."""

    arrived: float
    started: float  # it got a slot
    first_token: float  # its prompt was run


@dataclass(frozen=True, slots=True)
class RequestReport:
    """A report of one request that has ended: its outcome, times and numbers of tokens."""

    outcome: Outcome
    arrived: float  # seconds of `time.monotonic`, like `ended`
    ended: float
    timing: Timing | None = None  # None if it ended before its prompt was run
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


_listener: ContextVar[Callable[[RequestReport], None] | None] = ContextVar("listener", default=None)


@contextmanager
def reports_to(listener: Callable[[RequestReport], None]) -> Iterator[None]:
    """Call `listener` with a `RequestReport` at the end of each request that begins in the `with` block.

    Requests that begin in tasks started in the block count too.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class RequestAccount:
    """A context manager around one request: at its end, it adds to the engine's counters and reports to a listener.

    The listener is that of `reports_to`.

    For an engine's event loop. It is not a generator, because a loop that shuts down closes all generators at once.
    """

    def __init__(self, counters: EngineCounters) -> None:
        self.arrived = time.monotonic()
        self._counters = counters
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._timing: Timing | None = None
        self._outcome: Outcome | None = None
        self._listener = _listener.get()

    def started(self, prompt_tokens: int, cached_tokens: int, timing: Timing | None) -> None:
        """Record that the request's prompt has been run, with its token counts and times."""
        self._prompt_tokens, self._cached_tokens, self._timing = prompt_tokens, cached_tokens, timing
        self._counters.prompt_tokens.add(prompt_tokens)
        self._counters.cached_tokens += cached_tokens

    def generated(self, completion_tokens: int) -> None:
        """Record how many tokens the request has generated so far. Ignored after `finished`."""
        if self._outcome is None:
            self._completion_tokens = completion_tokens

    def finished(self, reason: str, completion_tokens: int) -> None:
        """Record that the request has ended for `reason`, with `completion_tokens` generated tokens."""
        self._outcome, self._completion_tokens = Outcome(reason), completion_tokens
        self._counters.completion_tokens.add(completion_tokens)
        self._counters.request_seconds.add(time.monotonic() - self.arrived)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        outcome = self._outcome or next(outcome for kind, outcome in _OUTCOMES if isinstance(error, kind))
        self._counters.outcomes[outcome] += 1
        if self._listener is not None:
            tokens = self._prompt_tokens, self._cached_tokens, self._completion_tokens
            self._listener(RequestReport(outcome, self.arrived, time.monotonic(), self._timing, *tokens))


_OUTCOMES = (
    (StepError, Outcome.FAILED_STEP),
    (OverloadedError, Outcome.OVERLOADED),
    (TimeLimitError, Outcome.TIMED_OUT),
    (UnavailableError, Outcome.UNAVAILABLE),
    (EngineClosedError, Outcome.CLOSED),
    ((Exception, NoneType), Outcome.ERROR),
    (BaseException, Outcome.ABANDONED),
)
