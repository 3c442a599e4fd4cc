"""The worker, a thread that owns the runner and runs the scheduler, and the watchdog that reports if it hangs."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeAlias, TypeVar

from rnn_engine.errors import DeviceError, EngineClosedError, ModelError, RnnEngineError, StepError, UnavailableError
from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.inboxes import Delivery, step_error
from rnn_engine.scheduler.scheduler import Scheduler
from rnn_engine.telemetry import Health
from rnn_engine.types import Runner

LOOK_SECONDS = 1.0  # between two looks
LOOP_SECONDS = 10.0  # for which the event loop may stand still before that is logged

_log = logging.getLogger(__name__)


class Watchdog:
    """A thread that reports if the worker or the event loop hangs, and stops the worker once the loop is closed.

    `on_stall` is called if the device does not answer. Make the object on the loop's thread. Its own thread ends after
    `stop`, or when the loop has been closed.
    """

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop, on_stall: Callable[[], None]) -> None:
        """Watch `worker` and `loop`. `on_stall` is called on the loop's thread whenever the worker begins to hang."""
        self._worker = worker
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._on_stall = on_stall
        self._worker_stalled = False
        self._loop_stalled = False
        self._asked: float | None = None  # when the loop was asked for a sign of life that it has not given yet
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rnn-engine watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make the watchdog's thread end soon. Does not wait for that."""
        self._stopped.set()

    def join(self) -> None:
        """Wait until the watchdog's thread has ended."""
        self._thread.join()

    def look(self) -> None:
        """Check once if the worker or the event loop hangs. Called on the watchdog's thread."""
        self._look_at_worker()
        if self._loop.is_closed():
            self._worker.stop()
            self.stop()
        else:
            self._look_at_loop(time.monotonic())

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                _log.exception("a check of the watchdog failed")

    def _look_at_worker(self) -> None:
        health = self._worker.health
        stalled, self._worker_stalled = self._worker_stalled, health.status == "stalled"
        if self._worker_stalled and not stalled:
            _log.critical("%s; the worker's stack:\n%s", health.reason, stack_of(self._worker.thread_id))
            with suppress(RuntimeError):  # the loop was closed just now
                self._loop.call_soon_threadsafe(self._on_stall)
        elif stalled and not self._worker_stalled:
            _log.warning("the worker runs again")

    def _look_at_loop(self, now: float) -> None:
        if self._asked is None:
            self._asked = now
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._note_sign)
        elif not self._loop.is_running():
            self._asked = now
        elif now - self._asked > LOOP_SECONDS and not self._loop_stalled:
            self._loop_stalled = True
            stack = stack_of(self._loop_thread)
            _log.critical("the event loop has been blocked for %.0f s; its stack:\n%s", now - self._asked, stack)

    def _note_sign(self) -> None:
        """Record that the event loop is running. The watchdog has it called on the loop's thread."""
        self._asked = None
        if self._loop_stalled:
            self._loop_stalled = False
            _log.warning("the event loop runs again")


def stack_of(thread_id: int | None) -> str:
    """Return the current call stack of a thread as text for the log."""
    frame = None if thread_id is None else sys._current_frames().get(thread_id)
    return "(the thread has ended)" if frame is None else "".join(traceback.format_stack(frame))


T = TypeVar("T")


class Questions:
    """Lets callers on one event loop run functions on the worker's thread, between two steps."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._loop = loop
        self._interrupt: asyncio.Future[RnnEngineError] = loop.create_future()

    async def ask(self, question: Callable[[], T]) -> T:
        """Run `question` on the worker's thread and return its result. Raises the error of `end` if that is first."""
        future: Future[T] = Future()
        self._worker.call(partial(_answer, future, question))
        answer, interrupt = asyncio.wrap_future(future), self._interrupt
        await asyncio.wait((answer, interrupt), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            raise interrupt.result()
        return answer.result()

    def end(self, error: RnnEngineError) -> None:
        """Make all calls of `ask` that wait for an answer raise `error`."""
        self._interrupt.set_result(error)
        self._interrupt = self._loop.create_future()


def _answer(future: Future[T], question: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return  # the caller has left
    try:
        future.set_result(question())
    except Exception as error:
        future.set_exception(error)


logger = logging.getLogger(__name__)

Command: TypeAlias = Callable[[], None]

Reopen: TypeAlias = Callable[[Callable[[], None]], Runner]
"""Closes the runner, opens its device again, and returns a new runner of the same model there.

It calls its argument now and then, which may raise. It raises ModelError if further attempts are useless, and any other
error if another attempt may succeed.
"""

MAX_FAILED_STEPS = 3  # in a row, after which the device is opened again even if it answers
RETRY_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
"""How long to wait before each attempt to open the device again; after the last one the engine has failed for good."""

IDLE_SECONDS = 60.0  # without work, after which one token is run to see whether the device still answers
STEP_SECONDS = 60.0  # for which a step, or a command between two, may run before the engine counts as stalled
LOAD_SECONDS = 600.0  # the same for each part of loading a model


class Deadline(NamedTuple):
    """A time limit for the device: its task, when it began (`time.monotonic`), and the seconds allowed."""

    what: str
    begun: float
    seconds: float


class Worker:
    """Runs the scheduler on a thread of its own, from `start` until `stop`.

    An exception of a command or a step ends every request with StepError, and the worker goes on. If that fails too, or
    if the device can't be opened again, the worker ends. `start`, `submit`, `call` and `stop` may be called from any
    thread and don't block.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        deliver: Callable[[list[Delivery]], None],
        on_end: Callable[[], None],
        reopen: Reopen,
    ) -> None:
        """Prepare the worker; `start` starts its thread. `deliver`, `on_end` and `reopen` are called on this thread.

        `deliver` must not block. `on_end` is called once, whatever happens; requests may be left without an outcome by
        then.
        """
        self._scheduler = scheduler
        self._deliver = deliver
        self._on_end = on_end
        self._reopen = reopen
        self._reopen_seconds = 5.0  # that it took the last time
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._is_idle = False  # nothing has come for a while
        self._stopping = False  # the worker's thread alone touches it
        self._health = Health()
        self._health_since = time.monotonic()
        self._deadline: Deadline | None = None  # of what the device does now
        self._thread = threading.Thread(target=self._run, name="rnn-engine worker", daemon=True)

    @property
    def health(self) -> Health:
        """The engine's health, which says if the device answers. May be read on any thread."""
        deadline, health, now = self._deadline, self._health, time.monotonic()
        if deadline is not None and now - deadline.begun > deadline.seconds:
            seconds = now - deadline.begun
            return Health("stalled", f"{deadline.what} has been running for {seconds:.0f} s", seconds, retry_after=10.0)
        return health if health.status == "ok" else replace(health, seconds=now - self._health_since)

    @property
    def thread_id(self) -> int | None:
        """The identifier of the worker's thread, as of `threading.get_ident`; None before `start`."""
        return self._thread.ident

    def start(self) -> None:
        self._thread.start()

    def submit(self, key: int, request: GenerateRequest, arrived: float) -> None:
        """Have the worker run a checked request, in the caller's context, that arrived by the scheduler's clock."""
        self.call(partial(copy_context().run, self._submit, key, request, arrived))

    def call(self, command: Command) -> None:
        """Have the worker run the function `command` before its next step. Commands run in the order of their calls."""
        self._commands.put(command)

    def stop(self) -> None:
        """Have the worker finish its step, end every request with EngineClosedError, and end its thread."""
        self.call(self._stop)

    def join(self) -> None:
        """Wait until the worker's thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.turn()
            self._end_requests(partial(EngineClosedError, "the engine has stopped"))
        except BaseException as error:
            self._set_health(Health("failed", str(error)))
            logger.critical("the worker failed and ends", exc_info=True)
        finally:
            try:
                self._on_end()
            except Exception:
                logger.exception("the call at the worker's end failed")

    def turn(self) -> None:
        """Run the commands that have arrived, run one step, and check the device if anything failed.

        For the worker's thread. Waits for commands while no step is due. Raises if the worker can't go on.
        """
        self._obey_and_step()
        if self._is_idle:
            self._is_idle = False
            if not self._device_answers():  # found before the next request comes
                self._recover("it did not run a token while it was idle")
        elif self._scheduler.failure is not None:
            self._check_device(self._scheduler.failure)

    def _obey_and_step(self) -> None:
        try:
            self._obey()
            if self._scheduler.has_work and not self._stopping and not self._is_idle:
                self._deadline = Deadline("a step", time.monotonic(), STEP_SECONDS)
                deliveries = self._scheduler.step()
                if self._scheduler.failure is not None:  # set before any client gets the error
                    self._set_health(Health("checking", f"a step failed: {self._scheduler.failure}"))
                self._post(deliveries)
        except Exception:
            logger.exception("the scheduler failed; its requests end")
            self._end_requests(partial(StepError, "the scheduler failed"))
        finally:
            self._deadline = None

    def _obey(self) -> None:
        """Run the commands that have arrived. While no step is due, wait for more and run these, too.

        Once a step is due, only the commands that have come by then are run before it, so that steps go on even if
        commands keep coming.
        """
        while not self._stopping:
            if self._scheduler.is_due():
                self._obey_waiting()
                return
            try:
                command = self._commands.get(timeout=IDLE_SECONDS)
            except Empty:
                self._is_idle = True
                return
            self._run_command(command)

    def _obey_waiting(self) -> None:
        for _ in range(self._commands.qsize()):
            self._run_command(self._commands.get())

    def _run_command(self, command: Command) -> None:
        before = self._deadline  # such as that of a load
        self._deadline = Deadline("work between two steps", time.monotonic(), STEP_SECONDS)
        try:
            command()
        finally:
            self._deadline = before

    def _check_device(self, failure: str) -> None:
        """Run one token after a failure; open the device again if that, or too many steps in a row, have failed."""
        if not self._device_answers() or self._scheduler.failed_in_a_row >= MAX_FAILED_STEPS:
            self._recover(failure)
        else:
            self._set_health(Health())

    def _recover(self, failure: str) -> None:
        """Open the failed device again, and end the requests that have states on it. Queued requests wait.

        Returns early, without a device that answers, if the worker must stop. Raises ModelError or DeviceError if the
        device does not come back.
        """
        logger.error("the device failed and is opened again: %s", failure)
        for attempt, seconds in enumerate(RETRY_SECONDS, 1):
            reason = (
                f"the device failed and is being opened again, attempt {attempt} of {len(RETRY_SECONDS)}: {failure}"
            )
            retry_after = seconds + self._reopen_seconds
            self._set_health(Health("recovering", reason, retry_after=retry_after))
            self._post(self._scheduler.abort(partial(UnavailableError, reason, retry_after), queued=False))
            self._obey_for(seconds)
            if self._stopping:
                return
            begun = time.monotonic()
            try:
                with self._deadline_of("loading the model again", LOAD_SECONDS):
                    self._scheduler.replace_runner(self._reopen(self._note_progress))
            except ModelError:
                raise
            except EngineClosedError:  # from `_note_progress`
                return
            except Exception:
                logger.exception("the device could not be opened again")
                continue
            if self._device_answers():
                self._reopen_seconds = time.monotonic() - begun
                self._scheduler.counters.device_reopens += 1
                logger.warning("the device answers again after %.1f s", self._reopen_seconds)
                self._set_health(Health())
                return
        raise DeviceError(f"the device did not come back in {len(RETRY_SECONDS)} attempts: {failure}")

    def _obey_for(self, seconds: float) -> None:
        """Run the commands that have arrived, and those that arrive within the next `seconds`."""
        end = time.monotonic() + seconds
        while not self._stopping:
            try:
                command = self._commands.get(timeout=max(end - time.monotonic(), 0.0))
            except Empty:
                return
            self._run_command(command)

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

    def _set_health(self, health: Health) -> None:
        self._health, self._health_since = health, time.monotonic()

    def _device_answers(self) -> bool:
        with self._deadline_of("a step", STEP_SECONDS):
            return self._scheduler.device_answers()

    @contextmanager
    def _deadline_of(self, what: str, seconds: float) -> Iterator[None]:
        """Return a context manager whose block, called `what`, counts as stalled after `seconds`."""
        self._deadline = Deadline(what, time.monotonic(), seconds)
        try:
            yield
        finally:
            self._deadline = None

    def _note_progress(self) -> None:
        """Run the commands that came while a part of the model was loaded, and restart the time limit for loading.

        Raises EngineClosedError if the worker must stop, so that nothing is loaded in vain.
        """
        if self._deadline is not None:
            self._deadline = self._deadline._replace(begun=time.monotonic())
        self._obey_waiting()
        if self._stopping:
            raise EngineClosedError("the engine is stopping")
