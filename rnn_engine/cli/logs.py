"""The server's log on standard error: a thread writes it, so that no request waits for its reader."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rnn_engine_server.telemetry.logs import LogSettings, RequestIdFilter, make_formatter

_STANDARD_ERROR = 2
_CAPACITY = 4096  # lines that wait to be written; those beyond are dropped
_CLOSING_SECONDS = 1.0  # for the lines that are left at the end
_DROPPED = "%d log lines were dropped, since standard error was not read"


class BackgroundHandler(logging.Handler):
    """Writes log lines to a file descriptor on a thread of its own; lines beyond `capacity` are dropped and counted."""

    def __init__(self, descriptor: int, capacity: int = _CAPACITY) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(capacity)  # None ends the thread
        self.dropped = 0  # since this was last logged
        self._thread = threading.Thread(target=self._write_lines, name="rnn-engine log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a log record to be written. Does not block: if the queue is full, the record is dropped and counted."""
        try:
            self._lines.put_nowait(self._encode(record))
        except queue.Full:
            self.dropped += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Wait until all log lines are written, and end the thread. Wait at most two seconds if nothing reads them."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSING_SECONDS)
            self._thread.join(_CLOSING_SECONDS)
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
            if dropped := self._take_dropped():
                self._write(self._encode(_dropped(dropped)))

    def _write(self, line: bytes) -> None:
        """Write a line, ignoring OSErrors: a thread hanging in `sys.stderr` would keep the interpreter from ending."""
        rest = memoryview(line)
        with suppress(OSError):  # nothing reads any more
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def _take_dropped(self) -> int:
        self.acquire()
        try:
            dropped, self.dropped = self.dropped, 0
        finally:
            self.release()
        return dropped

    def _encode(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")


def _dropped(count: int) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, _DROPPED, (count,), None)


@contextmanager
def log_on_stderr(settings: LogSettings) -> Iterator[None]:
    """Return a context manager that writes the log to standard error, with the format and level of `settings`."""
    handler = BackgroundHandler(_STANDARD_ERROR)
    handler.setFormatter(make_formatter(settings.format))
    handler.addFilter(RequestIdFilter())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()
