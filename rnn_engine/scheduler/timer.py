"""Steps a scheduler at the moments that a batching policy chooses.

Knows a clock, which may be any; does not wait itself.
"""

from __future__ import annotations

from collections.abc import Callable

from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.policies import BatchingPolicy, Load
from rnn_engine.scheduler.scheduler import Delivery, Scheduler


class BatchTimer:
    """Ask `wait_seconds` before each step and after each arrival; `clock` gives seconds from any moment on."""

    def __init__(self, scheduler: Scheduler, policy: BatchingPolicy, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._policy = policy
        self._clock = clock
        self._ready_since: float | None = None  # the next step could have been run

    def submit(self, key: int, request: GenerateRequest) -> None:
        """See `Scheduler.submit`."""
        self._policy.arrived(self._clock())
        self._scheduler.submit(key, request)

    def wait_seconds(self) -> float | None:
        """For how many seconds to wait for requests before the next step; None where there is nothing to run."""
        if not self._scheduler.has_work:
            self._ready_since = None
            return None
        now = self._clock()
        if self._ready_since is None:
            self._ready_since = now
        load = Load(self._scheduler.num_runnable, self._scheduler.capacity, now - self._ready_since, now)
        return self._policy.wait_seconds(load)

    def step(self) -> list[Delivery]:
        """See `Scheduler.step`."""
        self._ready_since = None
        begun, steps_before = self._clock(), self._scheduler.num_steps
        deliveries = self._scheduler.step()
        if self._scheduler.num_steps > steps_before:
            self._policy.stepped(self._clock() - begun)
        return deliveries
