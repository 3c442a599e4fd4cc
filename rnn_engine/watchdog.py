"""Watches a worker and an event loop from a thread of its own, and tells in the log where one of them stands still."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from rnn_engine.scheduler import Worker

LOOK_SECONDS = 1.0  # between two looks
LOOP_SECONDS = 10.0  # for which the event loop may stand still until it is told

_log = logging.getLogger(__name__)


class Watchdog:
    """Ends the worker where its event loop was closed, and calls `on_stall` where the device does not answer.

    Make it on the loop's thread. Its own thread ends with `stop`, or when the loop has been closed.
    """

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop, on_stall: Callable[[], None]) -> None:
        """`on_stall` is called on the loop's thread, once each time."""
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
        """Have the thread end soon."""
        self._stopped.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def look(self) -> None:
        """Look at both once. Called on the watchdog's thread."""
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
                _log.exception("the watchdog failed in one look")

    def _look_at_worker(self) -> None:
        health = self._worker.health
        stalled, self._worker_stalled = self._worker_stalled, health.status == "stalled"
        if self._worker_stalled and not stalled:
            _log.critical("%s; the worker is here:\n%s", health.reason, stack_of(self._worker.thread_id))
            with suppress(RuntimeError):  # the loop was closed just now
                self._loop.call_soon_threadsafe(self._on_stall)
        elif stalled and not self._worker_stalled:
            _log.warning("the worker goes on")

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
            _log.critical("the event loop has stood still for %.0f s; it is here:\n%s", now - self._asked, stack)

    def _note_sign(self) -> None:
        """Called on the loop's thread."""
        self._asked = None
        if self._loop_stalled:
            self._loop_stalled = False
            _log.warning("the event loop goes on")


def stack_of(thread_id: int | None) -> str:
    """Format where a thread is at this moment."""
    frame = None if thread_id is None else sys._current_frames().get(thread_id)
    return "(it has ended)" if frame is None else "".join(traceback.format_stack(frame))
