"""Coroutine methods as methods that block: an event loop on a thread of its own runs them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from rnn_engine.errors import EngineClosedError, check_process

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class Run(Protocol):
    """A function that runs a coroutine on another thread's event loop, and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Blocking(Generic[A]):
    """Base of a class whose methods are made by `blocking` from the coroutine methods of its twin."""

    def __init__(self, twin: A, run: Run) -> None:
        self._twin = twin
        self._run = run


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return a coroutine method of a twin without `await`, with the same arguments, overloads and docstring."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._twin, *args, **kwargs))

    return call


class Closeable(Protocol):
    async def close(self) -> None: ...


class LoopThread:
    """An event loop on a daemon thread, which other threads have run coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._stopping = False
        self._lock = threading.Lock()  # held while work is handed over, so that none comes after the last
        self._thread = threading.Thread(target=self._serve, name="rnn-engine LLM", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop, and wait; Ctrl-C cancels it. Raises EngineClosedError if stopped, or in a fork."""
        try:
            check_process(self._process, "LLM")
            self.check_caller()
            with self._lock:
                if self._stopping:
                    raise EngineClosedError("this LLM was closed")
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()  # it was never begun, which would be warned of
            raise
        try:
            return future.result()
        except CancelledError:
            raise EngineClosedError("this LLM was closed") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def check_caller(self) -> None:
        """Raise RuntimeError on the loop's own thread, which must not wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("`on_done` must not call the LLM that calls it; note the result, and go on outside")

    def stop(self, llm: Closeable | None = None) -> None:
        """Close `llm`, end what runs with EngineClosedError, and stop the loop; once, and not in a forked process."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            asyncio.run_coroutine_threadsafe(self._finish(llm), self._loop)
        if threading.current_thread() is not self._thread:  # it may be if an LLM is deleted by the garbage collector
            self._thread.join()

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _finish(self, llm: Closeable | None) -> None:
        try:
            if llm is not None:
                # At the interpreter's end its helper threads are gone, which the last, unimportant part needs.
                with suppress(RuntimeError):
                    await llm.close()
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()
            self._loop.call_soon(self._loop.stop)  # after the results have reached those who wait for them
