"""The signals that stop a server: the first lets running requests end, the second ends the process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import NoReturn

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # a terminal that is closed sends one of the last two
_log = logging.getLogger(__name__)


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Give an event that the first signal to stop sets; a second signal ends the process with 128 and its number.

    A signal that was ignored before stays ignored, as SIGHUP is under `nohup`. For the main thread.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    received: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        loop.call_soon_threadsafe(stop.set)

    with _handling(on_signal):
        yield stop


def end_at_signals() -> AbstractContextManager[None]:
    """Have a signal to stop end the process at once with code 0, while there is nothing yet to stop.

    A signal that was ignored before stays ignored. For the main thread.
    """
    return _handling(lambda *_: os._exit(0))


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have `handler` called for the signals to stop that are not ignored, until the end of the block."""
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in numbers}
    for number, earlier in previous.items():
        if earlier is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


def end_process() -> NoReturn:
    """End the process with code 0 although threads of it are busy; what the log still holds is written."""
    logging.shutdown()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)
