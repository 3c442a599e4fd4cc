"""Questions to the worker's thread from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from rnn_engine.errors import RnnEngineError
from rnn_engine.scheduler.worker import Worker

T = TypeVar("T")


class Questions:
    """Has a worker answer questions between two steps. For one event loop."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._loop = loop
        self._interrupt: asyncio.Future[RnnEngineError] = loop.create_future()

    async def ask(self, question: Callable[[], T]) -> T:
        """Return what `question` gives on the worker's thread, or raise what it raises there."""
        future: Future[T] = Future()
        self._worker.call(partial(_answer, future, question))
        answer, interrupt = asyncio.wrap_future(future), self._interrupt
        await asyncio.wait((answer, interrupt), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            raise interrupt.result()
        return answer.result()

    def end(self, error: RnnEngineError) -> None:
        """Raise `error` in all that wait for an answer."""
        self._interrupt.set_result(error)
        self._interrupt = self._loop.create_future()


def _answer(future: Future[T], question: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return  # whoever asked has left
    try:
        future.set_result(question())
    except Exception as error:
        future.set_exception(error)
