"""Servers over a fake engine, each in a process that is forked from one that has imported the server."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from rnn_engine_server.core.app import run
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine

_SECONDS = 60  # for a process to start, and to end
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True)
class FakeServer:
    """What a process serves. It is still loading after 60 seconds if it is `loading`."""

    hold: int | None = None
    drain_seconds: float = 10
    loading: bool = False
    unix_socket: Path | None = None

    def run(self, say: Callable[[str], None]) -> None:
        """Serve until a signal to stop; `say` hears that it loads, its address, and that it has ended."""

        async def load() -> FakeEngine:
            if self.loading:
                say("loading")
                await asyncio.to_thread(time.sleep, 60)
            return FakeEngine(hold=self.hold)

        settings = ServerSettings(port=0, drain_seconds=self.drain_seconds, unix_socket=self.unix_socket)
        run(load, settings, lambda info, url: say(url))
        say("ended")


class ServerProcess:
    """A process that serves. `said` is the first line that it said: its address, or that it loads."""

    def __init__(self, process: multiprocessing.process.BaseProcess, lines: Connection[None, str]) -> None:
        self._process = process
        self._lines = lines
        self.said = self._next()

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self) -> int | None:
        """Return the exit code, None if the process does not end."""
        self._process.join(_SECONDS)
        return self._process.exitcode

    def ending(self) -> list[str]:
        """Wait until the process has ended with code 0, and return what it said since its first line."""
        assert self.wait() == 0
        lines = []
        while line := self._next():
            lines.append(line)
        return lines

    def _next(self) -> str:
        """Return the next line, an empty one if the process has ended."""
        try:
            return self._lines.recv() if self._lines.poll(_SECONDS) else ""
        except EOFError:
            return ""


@contextmanager
def server_process(
    server: FakeServer | None = None, *, ignored: int | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Yield a process that serves, or loads. It ignores the signal `ignored` from its start."""
    lines, said = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_serve, args=(server or FakeServer(), said, ignored, environment or {}))
    process.start()
    said.close()
    try:
        yield ServerProcess(process, lines)
    finally:
        process.kill()
        process.join()
        lines.close()


def _serve(
    server: FakeServer, said: Connection[str, None], ignored: int | None, environment: Mapping[str, str]
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the parent process may have set it to be ignored
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)
    os.environ.update(environment)
    server.run(said.send)
