"""Start a server in a process of its own, such as `rnn-engine serve` or `rnn-engine fleet`, and stop it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import psutil

ROOT = Path(__file__).resolve().parents[2]
CLI = "rnn_engine.cli"
SECONDS_TO_START = 120.0
SECONDS_TO_STOP = 60.0


def write_keys(folder: Path, keys: Mapping[str, str]) -> str:
    """Write a file of API keys to `folder`, and return its path. `keys` has each key by its name and scope."""
    path = folder / "keys"
    path.touch(mode=0o600)
    path.write_text("".join(f"{name} {key}\n" for name, key in keys.items()))
    return str(path)


class ServerProcess:
    """A server in a process of its own, on a free port of this machine. A context manager, which kills the server."""

    def __init__(
        self, options: Sequence[str] = (), *, log: Path | None = None, command: Sequence[str] = (CLI, "serve")
    ) -> None:
        """Start the process, and return when the server accepts requests. Raises RuntimeError if that takes too long.

        Its output is appended to the file `log`, or dropped. `command` is a module and its first arguments.
        """
        self._folder = TemporaryDirectory()
        log = log or Path(self._folder.name) / "log"
        arguments = [sys.executable, "-m", *command, "--port", "0", *options]
        with log.open("ab") as output:
            begin = output.tell()
            self._process = subprocess.Popen(arguments, cwd=ROOT, stdout=output, stderr=output)
        try:
            self.url = self._wait_for_address(log, begin)
        except BaseException:
            self.close()
            raise

    def _wait_for_address(self, log: Path, begin: int) -> str:
        """Wait until the server prints its URL into its log, after the first `begin` bytes, and return the URL."""
        deadline = time.monotonic() + SECONDS_TO_START
        printed = b""
        while time.monotonic() < deadline:
            running = self.running
            printed = log.read_bytes()[begin:]
            for line in printed.splitlines(keepends=True):
                if line.startswith(b"address ") and line.endswith(b"\n"):
                    return line.split()[1].decode()
            if not running:
                break
            time.sleep(0.02)
        ending = f"did not print its address in {SECONDS_TO_START} s" if self.running else "has ended"
        raise RuntimeError(f"the server {ending}; it printed:\n{printed.decode(errors='replace')}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """Return the seconds of the processor that the process has used on all cores."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

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

    def __exit__(self, *error: object) -> None:
        self.close()
