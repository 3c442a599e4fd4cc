"""A test of `rnn-engine tune-state` and `tune-lora`, killed at moments of every kind, which go on with `--resume`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """A process of a command that trains and writes to a folder. It goes on if the folder has a checkpoint."""

    def __init__(self, folder: Path, command: str, options: Sequence[str]) -> None:
        self.output = folder / "tuned.safetensors"
        self.checkpoint = folder / "tuned.safetensors.checkpoint"
        self.log = folder / "log"
        self.cut_before = len(self.unfinished)  # writes of the checkpoint
        resume = ["--resume"] if self.checkpoint.exists() else []
        words = [sys.executable, "-m", CLI, command, str(_DATA), "-o", str(self.output), *_SETTINGS, *options, *resume]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)

    @property
    def unfinished(self) -> list[Path]:
        """The files of checkpoints that are being written, or whose writes were cut short."""
        return list(self.checkpoint.parent.glob(f"{self.checkpoint.name}.*{TEMPORARY_SUFFIX}"))

    @property
    def moments(self) -> Mapping[str, bool]:
        """The moments of every kind, and if they have come."""
        printed = self.log.read_text("utf-8", errors="replace")
        return {
            "the search for a rate": self.checkpoint.exists() and "update 0:" not in printed,
            "training": "update " in printed,
            "a write of the checkpoint": len(self.unfinished) > self.cut_before,
            "the samples at the end": self.output.exists(),
        }

    def wait_for(self, moment: str) -> None:
        """Return when a moment has come. Raises RuntimeError if the process ends before, or after too long a time."""
        deadline = time.monotonic() + _PATIENCE
        while not self.moments[moment]:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the moment of a kill did not come; the command printed:\n{self.log.read_text()}")
            time.sleep(0.001)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> bytes:
        """Wait until the process ends by itself, and return the output. Raises RuntimeError if it fails."""
        if self.process.wait(_PATIENCE) != 0:
            raise RuntimeError(f"the command failed; it printed:\n{self.log.read_text()}")
        return self.output.read_bytes()


@dataclass
class TuningCampaign:
    """Runs that are each killed once at a moment of every kind, and whose files are compared with `expected`."""

    folder: Path
    command: str
    options: tuple[str, ...]
    random: Random
    expected: bytes = b""
    kills: Counter[str] = field(default_factory=Counter)
    writes_cut: int = 0
    faults: list[str] = field(default_factory=list)

    def run(self, runs: int) -> None:
        """Make an undisturbed run, and then others that are killed."""
        self.expected = Run(self._make_folder("undisturbed"), self.command, self.options).finish()
        for number in range(runs):
            self._run_with_kills(self._make_folder(f"run {number}"))

    def _make_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    def _run_with_kills(self, folder: Path) -> None:
        """Make one run, kill it at a random moment of every kind, let it end, and compare its file."""
        for what, longest_delay in {
            "the search for a rate": _LONGEST_DELAY,
            "training": _LONGEST_DELAY,
            "a write of the checkpoint": 0.0,
            "the samples at the end": _LONGEST_DELAY / 4,
        }.items():
            run = Run(folder, self.command, self.options)
            run.wait_for(what)
            time.sleep(self.random.uniform(0, longest_delay))
            run.kill()
            self.kills[what] += 1
        last = Run(folder, self.command, self.options)
        self.writes_cut += len(last.unfinished)
        if last.finish() != self.expected:
            self.faults.append(f"{folder.name}: the file is not that of the undisturbed run")
        left = sorted(path.name for path in folder.iterdir() if path not in {last.log, last.output})
        if left:
            self.faults.append(f"{folder.name}: files are left: {left}")

    def row(self) -> Row:
        """Return the campaign's row for the table of docs/reliability.md."""
        kinds = ", ".join(f"{count} in {what}" for what, count in self.kills.items())
        device = self.options[self.options.index("--device") + 1] if "--device" in self.options else "auto"
        return Row(
            f"SIGKILL of {self.command} at moments of every kind",
            f"{self.kills.total()} kills: {kinds}; {self.writes_cut} writes of a checkpoint cut short",
            f"{len(self.faults)} files that differ, in any bit, from that of an undisturbed run",
            f"{len(self.expected)} bytes of each file",
            device,
        )
