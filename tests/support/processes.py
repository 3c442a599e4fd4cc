"""`rnn-engine` in a process of its own, as users start it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 120  # for a command to end


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server that takes requests."""

    said: str
    address: str
    process: subprocess.Popen[str]


def rnn_engine_process(*arguments: object, stdin: str | None = None, code: int = 0) -> str:
    """Run a command to its end, check its exit code, and return what it printed on both outputs."""
    done = subprocess.run(
        _command(arguments),
        cwd=ROOT,
        input="" if stdin is None else stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def run_program(script: str, folder: Path) -> str:
    """Run a Python program in `folder` to its end, check that it ends with code 0, and return what it printed.

    Nothing may be on its standard error.
    """
    file = folder / "program.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", file],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


@contextmanager
def serving_process(*arguments: object, log: Path | None = None) -> Iterator[Serving]:
    """Run a command that serves while the block runs. SIGTERM then ends it, and it must end with code 0.

    Its standard error goes into the file `log`.
    """
    with (
        open(os.devnull if log is None else log, "wb") as errors,
        subprocess.Popen(_command(arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            said = ""
            while "\ntry " not in said:
                line = process.stdout.readline()
                assert line, f"it ended with {process.wait(_SECONDS)} after saying {said!r}"
                said += line
            [address] = re.findall(r"^address +(\S+)$", said, re.MULTILINE)
            yield Serving(said, address, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(_SECONDS) == 0
        finally:
            process.kill()


def _command(arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "rnn_engine.cli", *map(str, arguments)]
