"""A test of `rnn-engine tune-state` that is killed at moments of every kind, and goes on with `--resume`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from rnn_engine.files import TEMPORARY_SUFFIX
from tools.live_server.process import CLI, ROOT
from tools.reliability_table import Row

_DATA: Final = ROOT / "docs" / "state-tuning" / "calls.jsonl"
_SETTINGS: Final = ("--steps", "40", "--batch-size", "4", "--held-out", "0.05", "--checkpoint-seconds", "0.1")
_LONGEST_DELAY: Final = 1.0  # seconds from an event to a kill
_PATIENCE: Final = 600.0  # seconds in which a run has to reach a moment, or its end


class Run:
    """A process of `rnn-engine tune-state` that writes to a folder. It goes on if the folder has a checkpoint."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self.output = folder / "tuned.state"
        self.checkpoint = folder / "tuned.state.checkpoint"
        self._log = folder / "log"
        self._cut_before = len(self.unfinished)
        resume = ["--resume"] if self.checkpoint.exists() else []
        paths = [str(_DATA), "-o", str(self.output)]
        command = [sys.executable, "-m", CLI, "tune-state", *paths, *_SETTINGS, *options, *resume]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    @property
    def printed(self) -> str:
        return self._log.read_text("utf-8", errors="replace")

    @property
    def unfinished(self) -> list[Path]:
        """The files of checkpoints that are being written, or whose writes were cut short."""
        return list(self.checkpoint.parent.glob(f"{self.checkpoint.name}.*{TEMPORARY_SUFFIX}"))

    @property
    def is_writing(self) -> bool:
        """True while this process writes a checkpoint."""
        return len(self.unfinished) > self._cut_before

    def wait_for(self, has_come: Callable[[Run], bool]) -> None:
        """Return when `has_come` is true. Raises RuntimeError if the process ends before, or after too long a time."""
        deadline = time.monotonic() + _PATIENCE
        while not has_come(self):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the moment of a kill did not come; the command printed:\n{self.printed}")
            time.sleep(0.001)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def finish(self) -> bytes:
        """Wait until the process ends by itself, and return the state's file. Raises RuntimeError if it fails."""
        if self._process.wait(_PATIENCE) != 0:
            raise RuntimeError(f"the command failed; it printed:\n{self.printed}")
        return self.output.read_bytes()


def _is_searching(run: Run) -> bool:
    return run.checkpoint.exists() and "update 0:" not in run.printed


def _is_training(run: Run) -> bool:
    return "update " in run.printed


def _makes_samples(run: Run) -> bool:
    return run.output.exists()


@dataclass
class TuningCampaign:
    """Runs that are each killed once at a moment of every kind, and whose states are compared with `expected`."""

    folder: Path
    options: tuple[str, ...]
    random: Random
    expected: bytes = b""
    kills: Counter[str] = field(default_factory=Counter)
    writes_cut: int = 0
    faults: list[str] = field(default_factory=list)

    def run_undisturbed(self) -> None:
        folder = self.folder / "undisturbed"
        folder.mkdir()
        self.expected = Run(folder, self.options).finish()

    def run_with_kills(self, number: int) -> None:
        """Make one run, kill it at a random moment of every kind, let it end, and compare its state."""
        folder = self.folder / str(number)
        folder.mkdir()
        self._kill(folder, "the search for a rate", _is_searching, self._delay())
        self._kill(folder, "training", _is_training, self._delay())
        self._kill(folder, "a write of the checkpoint", lambda run: run.is_writing, 0.0)
        self._kill(folder, "the samples at the end", _makes_samples, self._delay() / 4)
        last = Run(folder, self.options)
        self.writes_cut += len(last.unfinished)
        if last.finish() != self.expected:
            self.faults.append(f"run {number}: the state is not that of the undisturbed run")
        left = sorted(path.name for path in folder.iterdir() if path.name not in {"log", last.output.name})
        if left:
            self.faults.append(f"run {number}: files are left: {left}")

    def _delay(self) -> float:
        return self.random.uniform(0, _LONGEST_DELAY)

    def _kill(self, folder: Path, what: str, has_come: Callable[[Run], bool], delay: float) -> None:
        run = Run(folder, self.options)
        run.wait_for(has_come)
        time.sleep(delay)
        run.kill()
        self.kills[what] += 1

    def row(self) -> Row:
        """Return the campaign's row for the table of docs/reliability.md."""
        kinds = ", ".join(f"{count} in {what}" for what, count in self.kills.items())
        device = self.options[self.options.index("--device") + 1] if "--device" in self.options else "auto"
        return Row(
            "SIGKILL of tune-state at moments of every kind",
            f"{self.kills.total()} kills: {kinds}; {self.writes_cut} writes of a checkpoint cut short",
            f"{len(self.faults)} states that differ, in any bit, from that of an undisturbed run",
            f"{len(self.expected)} bytes of each state",
            device,
        )
