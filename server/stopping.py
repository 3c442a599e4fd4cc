"""The signals that stop a server: the first lets running requests end, the second ends the process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in numbers}
    received: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        loop.call_soon_threadsafe(stop.set)

    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_process() -> NoReturn:
    """End the process with code 0 although threads of it are busy; what the log still holds is written."""
    logging.shutdown()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)
