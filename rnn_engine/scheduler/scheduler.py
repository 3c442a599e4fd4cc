"""Continuous batching: requests join and leave the slots of one runner at every step.

Synchronous, for one thread; sees the model through the `Runner` protocol. Knows neither clients nor threads.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rnn_engine.errors import RnnEngineError, StepError
from rnn_engine.requests import Event, GenerateRequest
from rnn_engine.sampling import LogitRow
from rnn_engine.scheduler.batching import share
from rnn_engine.scheduler.prefixes import Prefixes
from rnn_engine.scheduler.queue import Queue, Waiting
from rnn_engine.scheduler.sequence import LiveSequence
from rnn_engine.types import Readout, Runner, TokenRun, run_step
from states.cache.cache import StateCache

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Something that the client of one request is to hear. After a `Finished` or an error nothing more comes."""

    key: int
    outcome: Event | RnnEngineError


class Scheduler:
    """Requests wait for a free slot, or for what a running one shares with them; all in slots advance in every step.

    Requests have been checked, and a key stands for one request for ever. `token_bytes` gives a token's text.
    """

    def __init__(
        self,
        runner: Runner,
        token_bytes: Callable[[int], bytes],
        cache: StateCache | None = None,
        num_slots: int | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`cache` keeps the states of prompts and answers, for the prompts that go on from them.

        Sequences run in the first `num_slots` of the runner's slots; None is all of them. `wake` is called on another
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
        self.num_steps = 0  # batches that were run
        self._answered = False  # the last step gave first tokens and ran no batch

    @property
    def num_live(self) -> int:
        """How many requests hold a slot."""
        return len(self._live)

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_runnable(self) -> int:
        """How many requests the next step would run, as far as that can be told before it."""
        return min(len(self._live) + self._queue.num_ready, self.capacity)

    @property
    def num_leads(self) -> int:
        """How many requests run what others may wait for."""
        return self._prefixes.num_leads

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: not while all that wait for a slot have their states read first."""
        return bool(self._live) or self._queue.num_ready > 0

    def submit(self, key: int, request: GenerateRequest) -> None:
        """Queue `request`."""
        waiting = Waiting(key, request, self._prefixes.path(request))
        self._keep_back(waiting)
        self._queue.add(waiting)

    def cancel(self, key: int) -> None:
        """Forget a request, wherever it is; its slot is free at once. One that has ended is no error."""
        self._queue.discard(key)
        if key in self._live:
            self._release(key)

    def abort(self, make_error: Callable[[], RnnEngineError]) -> list[Delivery]:
        """End every request with an error of its own."""
        keys = [*self._live, *self._queue.keys]
        for key in keys:
            self.cancel(key)
        return [Delivery(key, make_error()) for key in keys]

    def step(self) -> list[Delivery]:
        """Give free slots to waiting requests, then run one batch. Never raises what the runner raises.

        Where some of them need no batch for their first token, it is delivered at once, and the next call runs a batch.
        """
        deliveries = self._admit()
        self._answered = bool(deliveries) and not self._answered
        return deliveries if self._answered else deliveries + self._run_batch()

    def _run_batch(self) -> list[Delivery]:
        grants = share([live.demand for live in self._live.values()], self._runner.max_tokens, self._runner.max_rows)
        runs = {key: live.run(count) for (key, live), count in zip(self._live.items(), grants, strict=True)}
        if not runs:
            return []
        self.num_steps += 1
        try:
            readout = run_step(self._runner, list(runs.values()))
        except Exception as error:
            logger.exception("a step over %d requests failed", len(runs))
            return [self._fail(key, error) for key in runs]
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
            return [Delivery(waiting.key, _failure(error))]
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
        for key, run in runs.items():
            rows = range(first, first + run.rows)
            first += run.rows
            deliveries += self._advance_one(key, run, readout, rows)
        return deliveries

    def _advance_one(self, key: int, run: TokenRun, readout: Readout, rows: range) -> list[Delivery]:
        live = self._live[key]
        try:
            logit_rows = [LogitRow.of(readout, row, self._runner.shape.vocab_size) for row in rows]
            events = live.advance(run, logit_rows, readout.target_logits[rows.start : rows.stop])
        except Exception as error:
            logger.exception("a request failed after its step")
            return [self._fail(key, error)]
        if (kind := live.due) is not None:
            read_logits = logit_rows[-1].read_full if logit_rows else None
            self._prefixes.keep(live.request, live.tokens_run, live.slot, kind, read_logits)
        live.kept()
        if live.finished:
            self._release(key)
        return [Delivery(key, event) for event in events]

    def _fail(self, key: int, error: Exception) -> Delivery:
        self._release(key)
        return Delivery(key, _failure(error))

    def _release(self, key: int) -> None:
        live = self._live.pop(key)
        live.close()
        heapq.heappush(self._free, live.slot)


def _failure(error: Exception) -> StepError:
    """An error of its own for each request, so that tracebacks do not mix."""
    failure = StepError(str(error) or type(error).__name__)
    failure.__cause__ = error
    return failure
