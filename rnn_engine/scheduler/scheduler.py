"""Continuous batching: requests join and leave the slots of one runner at every step."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rnn_engine.errors import RnnEngineError, StepError
from rnn_engine.requests import Event, GenerateRequest
from rnn_engine.sampling import LogitRow
from rnn_engine.scheduler.batching import share
from rnn_engine.scheduler.policies import EAGER, BatchingPolicy, Load
from rnn_engine.scheduler.prefixes import Prefixes
from rnn_engine.scheduler.queue import Queue, Waiting
from rnn_engine.scheduler.sequence import LiveSequence
from rnn_engine.types import Readout, Runner, TokenRun, run_step
from states.cache.cache import StateCache

logger = logging.getLogger(__name__)

_UNSOUND = (
    "the model's logits are not finite for this request; expected a prompt and an initial state that keep them so"
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event or an error for the client of one request. Nothing follows a `Finished` or an error."""

    key: int
    outcome: Event | RnnEngineError


class Scheduler:
    """Runs requests on the slots of a runner: all that hold a slot advance in every step.

    Synchronous; one thread owns it, and it never waits but for the runner. The caller asks `wait_seconds` when to
    call `step`.
    """

    def __init__(
        self,
        runner: Runner,
        token_bytes: Callable[[int], bytes],
        cache: StateCache | None = None,
        num_slots: int | None = None,
        policy: BatchingPolicy = EAGER,
        clock: Callable[[], float] = time.monotonic,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`token_bytes` gives a token's text; `cache` keeps the states of prompts and answers for later prompts.

        Sequences run in the first `num_slots` of the runner's slots; None is all of them. `policy` says whether a step
        waits for more requests, by the seconds of `clock`, which may begin at any moment. `wake` is called on another
        thread when a request that waited for its state to be read may start.
        """
        self._runner = runner
        self._prefixes = Prefixes(runner, cache, wake)
        self._token_bytes = token_bytes
        self._queue = Queue()
        self._live: dict[int, LiveSequence] = {}  # oldest first
        # With no more sequences than tokens and rows in a step, each can always run one token.
        self.capacity = min(num_slots or runner.num_slots, runner.max_tokens, runner.max_rows)
        self._free = list(range(self.capacity))  # a heap
        self._policy = policy
        self._clock = clock
        self._ready_since: float | None = None  # since when the next step could have been run
        self._answered = False  # the last step gave first tokens and ran no batch

    @property
    def num_live(self) -> int:
        """How many requests hold a slot."""
        return len(self._live)

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_leads(self) -> int:
        """How many requests run what others may wait for."""
        return self._prefixes.num_leads

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: not while all that wait for a slot have their states read first."""
        return bool(self._live) or self._queue.num_ready > 0

    def wait_seconds(self) -> float | None:
        """For how many seconds to wait for requests before the next step; None where there is nothing to run.

        To be asked before each step and again after each arrival.
        """
        if not self.has_work:
            self._ready_since = None
            return None
        now = self._clock()
        if self._ready_since is None:
            self._ready_since = now
        sequences = min(len(self._live) + self._queue.num_ready, self.capacity)
        return self._policy.wait_seconds(Load(sequences, self.capacity, now - self._ready_since, now))

    def submit(self, key: int, request: GenerateRequest) -> None:
        """Queue `request`, which has been checked. `key` stands for this request and never for another."""
        self._policy.arrived(self._clock())
        waiting = Waiting(key, request, self._prefixes.path(request))
        self._keep_back(waiting)
        self._queue.add(waiting)

    def cancel(self, key: int) -> None:
        """Forget a request that waits or runs, and free its slot. Does nothing for one that has ended."""
        self._queue.discard(key)
        if key in self._live:
            self._release(key)

    def abort(self, make_error: Callable[[], RnnEngineError]) -> list[Delivery]:
        """End every request, each with an error of its own."""
        keys = [*self._live, *self._queue.keys]
        for key in keys:
            self.cancel(key)
        return [Delivery(key, make_error()) for key in keys]

    def step(self) -> list[Delivery]:
        """Give free slots to waiting requests, then run one batch. What the runner raises becomes deliveries.

        Where some of them need no batch for their first token, it is delivered at once, and the next call runs a batch.
        """
        self._ready_since = None
        deliveries = self._admit()
        self._answered = bool(deliveries) and not self._answered
        return deliveries if self._answered else deliveries + self._run_batch()

    def _run_batch(self) -> list[Delivery]:
        grants = share([live.demand for live in self._live.values()], self._runner.max_tokens, self._runner.max_rows)
        runs = {key: live.run(count) for (key, live), count in zip(self._live.items(), grants, strict=True)}
        if not runs:
            return []
        begun = self._clock()
        try:
            readout = run_step(self._runner, list(runs.values()))
        except Exception as error:
            logger.exception("a step over %d requests failed", len(runs))
            return [self._fail(key, error) for key in runs]
        finally:
            self._policy.stepped(self._clock() - begun)
        return self._advance(runs, readout)

    def _admit(self) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for waiting in self._queue.ready() if self._free else ():
            if not self._free:
                break
            if not self._keep_back(waiting):
                self._queue.take(waiting)
                deliveries += self._start(waiting)
        return deliveries

    def _keep_back(self, waiting: Waiting) -> bool:
        """Let a request wait for a running one, or for its state to be read, where that saves something; whether."""
        wait = self._prefixes.find_wait(waiting.request, waiting.path, waiting.wait)
        if wait is not None:
            waiting.wait = wait
            waiting.set_fetch(None)
            return True
        while (fetch := self._prefixes.fetch(waiting.request, waiting.path)) is not None:
            waiting.set_fetch(fetch)
            if not fetch.done:
                return True
            if not fetch.failed:
                return False
        waiting.set_fetch(None)
        return False

    def _start(self, waiting: Waiting) -> list[Delivery]:
        slot = heapq.heappop(self._free)
        start = None
        try:
            start = self._prefixes.begin(waiting.request, waiting.path, slot, waiting.fetch)
            live = LiveSequence(waiting.request, slot, start, self._token_bytes, self._runner.read_state)
        except Exception as error:
            logger.exception("a request could not start")
            if start is not None:
                start.cuts.close()
            heapq.heappush(self._free, slot)
            return [Delivery(waiting.key, step_error(error))]
        finally:
            waiting.set_fetch(None)
        self._live[waiting.key] = live
        for other in self._queue.ready():
            if self._prefixes.concerns(start, other.path):
                self._keep_back(other)
        return self._begin(waiting.key, live)

    def _begin(self, key: int, live: LiveSequence) -> list[Delivery]:
        """What a request hears before its first step."""
        try:
            events = live.begin()
        except Exception as error:
            logger.exception("a request failed at its first token")
            return [self._fail(key, error)]
        if live.finished:
            self._release(key)
        return [Delivery(key, event) for event in events]

    def _advance(self, runs: Mapping[int, TokenRun], readout: Readout) -> list[Delivery]:
        deliveries = []
        first = 0
        for (key, run), sound in zip(runs.items(), readout.sound, strict=True):
            rows = range(first, first + run.rows)
            first += run.rows
            if sound:
                deliveries += self._advance_one(key, run, readout, rows)
            else:
                deliveries.append(self._fail(key, StepError(_UNSOUND)))
        return deliveries

    def _advance_one(self, key: int, run: TokenRun, readout: Readout, rows: range) -> list[Delivery]:
        live = self._live[key]
        try:
            logit_rows = [LogitRow.of(readout, row, self._runner.shape.vocab_size) for row in rows]
            events = live.advance(run, logit_rows, readout.target_logits[rows.start : rows.stop])
        except Exception as error:
            logger.exception("a request failed after its step")
            return [self._fail(key, error)]
        if (point := live.due) is not None:
            read_logits = logit_rows[-1].read_full if point.logits else None
            self._prefixes.keep(live.request, live.tokens_run, live.slot, point.kind, read_logits)
        live.kept()
        if live.finished:
            self._release(key)
        return [Delivery(key, event) for event in events]

    def _fail(self, key: int, error: Exception) -> Delivery:
        self._release(key)
        return Delivery(key, step_error(error))

    def _release(self, key: int) -> None:
        live = self._live.pop(key)
        live.close()
        heapq.heappush(self._free, live.slot)


def step_error(error: Exception) -> StepError:
    """Return a new StepError that `error` caused: each request gets its own, so that tracebacks do not mix."""
    failure = StepError(str(error) or type(error).__name__)
    failure.__cause__ = error
    return failure
