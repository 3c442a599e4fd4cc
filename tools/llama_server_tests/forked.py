"""A server in a fork of this process, which starts in a fraction of the time that Python needs to import it."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rnn_engine.cli.serve import serve_command as command
from tools.live_server.process import wait_for_address

_FORK = multiprocessing.get_context("fork")


class ForkedServer:
    """`rnn-engine serve` on a free port of this machine. Its output is appended to the file `log`.

    Only for a process without other threads.
    """

    def __init__(self, log: Path, options: Sequence[str]) -> None:
        """Start the server and return once it takes requests. Raises RuntimeError if it ends or takes too long."""
        log.touch()
        begin = log.stat().st_size
        self._process = _FORK.Process(target=_serve, args=(log, options), daemon=True)
        self._process.start()
        try:
            self.url = wait_for_address(log, begin, self._process.is_alive)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._process.kill()
        self._process.join()


def _serve(log: Path, options: Sequence[str]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1)
    command(["--port", "0", *options], prog_name="rnn-engine serve")
