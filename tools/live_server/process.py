"""Start a server in a process of its own, such as `rnn-engine serve` or `rnn-engine fleet`, and stop it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
CLI = "rnn_engine.cli"
SECONDS_TO_START = 120.0
SECONDS_TO_STOP = 60.0


class ServerProcess:
    """A server in a process of its own, on a free port of this machine. It appends its output to the file `log`.

    A context manager: if the server still runs at the end of the block, it is killed.
    """

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        log: Path | None = None,
        command: Sequence[str] = (CLI, "serve"),
        root: Path = ROOT,
        max_memory_mb: int | None = None,
    ) -> None:
        """Start the process, and return when the server accepts requests.

        Raises RuntimeError if it ends or takes too long. Without `log`, what it prints is dropped in the end. `command`
        is a module and its first arguments, `root` the checkout that it is of; `max_memory_mb` bounds the address
        space if the system can do that.
        """
        self._folder = TemporaryDirectory()
        log = log or Path(self._folder.name) / "log"
        arguments = [sys.executable, "-m", *command, "--port", "0", *options]
        if max_memory_mb is not None:
            arguments = ["sh", "-c", f'ulimit -v {1024 * max_memory_mb}; exec "$@"', "sh", *arguments]
        with log.open("ab") as output:
            begin = output.tell()
            self._process = subprocess.Popen(arguments, cwd=root, stdout=output, stderr=output)
        try:
            self.url = wait_for_address(log, begin, lambda: self.running)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def memory_megabytes(self, field: str = "VmRSS") -> float:
        """Return the process's resident memory in MiB, or another `field` of its /proc status; 0 if it has ended."""
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024
        return 0.0

    def kill(self) -> None:
        """Kill the process without a clean-up, as in a crash, and wait until it has ended."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Send SIGTERM and return the exit status. Raises subprocess.TimeoutExpired if the process does not end."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(SECONDS_TO_STOP)

    def close(self) -> None:
        """Kill the process if it still runs, and delete its log unless the caller chose the file."""
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def run_elsewhere(module: str, plan: object) -> Any:  # noqa: ANN401
    """Run `python -m MODULE` with `plan` as JSON on its stdin, and return its output, parsed as JSON.

    Raises RuntimeError if it fails.
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    output, _ = await process.communicate(json.dumps(plan).encode())
    if process.returncode != 0:
        raise RuntimeError(f"{module} failed")
    return json.loads(output)


def wait_for_address(log: Path, begin: int, is_running: Callable[[], bool]) -> str:
    """Wait until a server prints its URL into its log, which is when it accepts requests, and return the URL.

    The first `begin` bytes of the log are skipped. Raises RuntimeError if it ends or takes too long.
    """
    deadline = time.monotonic() + SECONDS_TO_START
    printed = b""
    while time.monotonic() < deadline:
        running = is_running()
        printed = log.read_bytes()[begin:]
        for line in printed.splitlines(keepends=True):
            if line.startswith(b"address ") and line.endswith(b"\n"):
                return line.split()[1].decode()
        if not running:
            break
        time.sleep(0.02)
    ending = f"did not print its address in {SECONDS_TO_START} s" if is_running() else "has ended"
    raise RuntimeError(f"the server {ending}; it printed:\n{printed.decode(errors='replace')}")
