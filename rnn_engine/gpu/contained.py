"""Native calls that may end the process by abort(), made on threads that are kept out of use in its place.

The handler of SIGABRT runs on the thread that called abort(), and the process ends only once the handler returns. On
the threads of this module it never does. That is sound if the library holds no lock when it gives up. An abort() on any
other thread ends the process as ever. Windows asks no handler, so the calls are made directly there.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NoReturn, TypeVar, cast

T = TypeVar("T")

_CONTAINS: Final = platform.system() in ("Linux", "Darwin")  # by POSIX in both; only Linux was tried


class AbortedError(Exception):
    """Raised in place of the end of the process: a contained call has called abort()."""


class _Caller(threading.Thread):
    """A thread that makes calls for other threads, one at a time, until a call runs into abort()."""

    def __init__(self) -> None:
        super().__init__(name="rnn-engine device", daemon=True)
        self.has_aborted = False
        self._function: Callable[[], object] | None = None
        self._result: object = None
        self._error: BaseException | None = None
        self._called, self._ended = threading.Lock(), threading.Lock()
        self._called.acquire()
        self._ended.acquire()
        self.start()

    def call(self, function: Callable[[], T]) -> T:
        """Call `function` on this thread, which must be idle. Return its result, or raise its error."""
        self._function = function
        self._called.release()
        self._ended.acquire()
        if self.has_aborted:
            raise AbortedError("abort() was called")
        (result, self._result), (error, self._error) = (self._result, None), (self._error, None)
        _idle.append(self)
        if error is not None:
            raise error
        return cast("T", result)

    def run(self) -> None:
        _callers[threading.get_ident()] = self
        while True:
            self._called.acquire()
            assert self._function is not None
            try:
                self._result = self._function()
            except BaseException as error:
                self._error = error
            self._function = None
            self._ended.release()

    def keep(self) -> NoReturn:
        """Report the abort() that this thread has called. From then on, make the calls of `call_on_aborted_thread`."""
        self._function, self.has_aborted = None, True
        self._ended.release()
        while True:
            function, done = _for_aborted.get()
            function()
            done.set()


_callers: dict[int, _Caller] = {}  # by their threads' identifiers
_idle: list[_Caller] = []
_for_aborted: SimpleQueue[tuple[Callable[[], object], threading.Event]] = SimpleQueue()
_starting = threading.Lock()
_handlers: list[object] = []  # of SIGABRT: the one of this module, once there is a thread


def contained(function: Callable[[], T]) -> T:
    """Return `function()`, called on another thread. Blocks until it ends. Raises AbortedError if it calls abort()."""
    if not _CONTAINS:
        return function()
    try:
        caller = _idle.pop()
    except IndexError:
        caller = _start_caller()
    return caller.call(function)


def call_on_aborted_thread(function: Callable[[], object]) -> None:
    """Call `function`, which must not raise, on a thread that AbortedError was raised for, and wait until it ends."""
    done = threading.Event()
    _for_aborted.put((function, done))
    done.wait()


def _start_caller() -> _Caller:
    with _starting:
        if not _handlers:
            _handlers.append(_handle_aborts())
    return _Caller()


def _handle_aborts() -> object:
    """Replace the process's handler of SIGABRT, and return the new one, which must be kept."""
    set_handler = ctypes.CDLL(None).signal  # Python's handlers of signals run later, on the main thread
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p

    def on_abort(number: int) -> None:
        caller = _callers.get(threading.get_ident())
        if caller is not None:
            caller.keep()
        set_handler(number, previous)
        signal.raise_signal(number)  # the previous handler gets it once this one has returned

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)
    previous = set_handler(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=_forget_callers)
    return handler


def _forget_callers() -> None:
    """Forget all threads, because this process was forked and has none of them."""
    _callers.clear()
    _idle.clear()
