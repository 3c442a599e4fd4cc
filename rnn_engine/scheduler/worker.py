"""The thread that owns the runner: it obeys commands between steps, and steps a scheduler while there is work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias

from rnn_engine.errors import EngineClosedError, RnnEngineError, StepError
from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.scheduler import Delivery, Scheduler, step_error

logger = logging.getLogger(__name__)

Command: TypeAlias = Callable[[], None]


class Worker:
    """Runs a scheduler on a thread of its own from `start` until `stop`.

    An exception of a command or a step ends every request with StepError, and the worker goes on. Where that fails too,
    the worker ends. `start`, `submit`, `call` and `stop` may be called from any thread and don't block.
    """

    def __init__(
        self, scheduler: Scheduler, deliver: Callable[[list[Delivery]], None], on_end: Callable[[], None]
    ) -> None:
        """Both are called on the worker's thread: `deliver` must not block, `on_end` is called once, whatever happens.

        Requests may be left without an outcome when `on_end` is called.
        """
        self._scheduler = scheduler
        self._deliver = deliver
        self._on_end = on_end
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._stopping = False  # the worker's thread alone touches it
        self._thread = threading.Thread(target=self._run, name="rnn-engine worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, key: int, request: GenerateRequest, arrived: float) -> None:
        """Have the worker run `request`, which has been checked and came at `arrived` by the scheduler's clock."""
        self.call(partial(self._submit, key, request, arrived))

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
        try:
            while not self._stopping:
                self._obey_and_step()
            self._end_requests(partial(EngineClosedError, "the engine has stopped"))
        except BaseException:
            logger.critical("the worker failed and ends", exc_info=True)
        finally:
            try:
                self._on_end()
            except Exception:
                logger.exception("the worker's end failed")

    def _obey_and_step(self) -> None:
        try:
            self._obey()
            if self._scheduler.has_work and not self._stopping:
                self._post(self._scheduler.step())
        except Exception:
            logger.exception("the scheduler failed; its requests end")
            self._end_requests(partial(StepError, "the scheduler failed"))

    def _obey(self) -> None:
        """Run the commands that have come; wait for more while no step is due.

        Those that come meanwhile are left for the time after the step, so that steps go on however many come.
        """
        while not self._stopping:
            wait_seconds = self._scheduler.wait_seconds()
            if wait_seconds == 0.0:
                for _ in range(self._commands.qsize()):
                    self._commands.get()()
                return
            try:
                command = self._commands.get(timeout=wait_seconds)
            except Empty:
                return
            command()

    def _submit(self, key: int, request: GenerateRequest, arrived: float) -> None:
        try:
            self._scheduler.submit(key, request, arrived)
        except Exception as error:
            logger.exception("a request could not be queued")
            self._scheduler.cancel(key)
            self._deliver([Delivery(key, step_error(error))])

    def _end_requests(self, make_error: Callable[[], RnnEngineError]) -> None:
        self._post(self._scheduler.abort(make_error))

    def _post(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            self._deliver(deliveries)

    def _stop(self) -> None:
        self._stopping = True
