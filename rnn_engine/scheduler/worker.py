"""The one thread that owns the runner: it obeys commands between steps, and steps where there is work and it is time.

Knows threads; knows nothing of event loops: deliveries go to a callable that must not block.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias

from rnn_engine.errors import EngineClosedError, StepError
from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.policies import EAGER, BatchingPolicy
from rnn_engine.scheduler.scheduler import Delivery, Scheduler
from rnn_engine.scheduler.timer import BatchTimer

logger = logging.getLogger(__name__)

Command: TypeAlias = Callable[[], None]


class Worker:
    """Runs `scheduler` on its own thread from `start` until `stop`.

    `deliver` and `on_end` are called on that thread. No exception of a command or a step ends it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        deliver: Callable[[list[Delivery]], None],
        on_end: Callable[[], None],
        policy: BatchingPolicy = EAGER,
    ) -> None:
        """`policy` says when a step is run with those that are there, and when others are waited for."""
        self._scheduler = scheduler
        self._pace = BatchTimer(scheduler, policy, time.monotonic)
        self._deliver = deliver
        self._on_end = on_end
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._stopping = False  # the worker's thread alone touches it
        self._thread = threading.Thread(target=self._run, name="rnn-engine worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, key: int, request: GenerateRequest) -> None:
        """Have the worker run `request`."""
        self.call(partial(self._pace.submit, key, request))

    def call(self, command: Command) -> None:
        """Have the worker run `command` before its next step; commands run in the order of their calls."""
        self._commands.put(command)

    def stop(self) -> None:
        """Have the worker finish its step, end every request with EngineClosedError, and end."""
        self.call(self._stop)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._obey()
            if self._scheduler.has_work and not self._stopping:
                self._guard(self._step)
        self._guard(lambda: self._deliver(self._scheduler.abort(lambda: EngineClosedError("the engine has stopped"))))
        self._guard(self._on_end)

    def _obey(self) -> None:
        """Run the commands that have come; wait for more while no step is due."""
        while not self._stopping:
            try:
                command = self._commands.get(timeout=self._pace.wait_seconds())
            except Empty:
                return
            self._guard(command)

    def _step(self) -> None:
        try:
            deliveries = self._pace.step()
        except Exception:
            logger.exception("the scheduler failed; its requests end")
            deliveries = self._scheduler.abort(lambda: StepError("the scheduler failed"))
        if deliveries:
            self._deliver(deliveries)

    def _guard(self, action: Command) -> None:
        try:
            action()
        except Exception:
            logger.exception("an action of the worker failed")

    def _stop(self) -> None:
        self._stopping = True
