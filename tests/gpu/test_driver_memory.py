"""The memory that a driver holds while a model is loaded and used: little more than what was planned.

A software device's memory is shared memory of the process. So each case is measured in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.forward import GpuRunner
from rnn_engine.gpu import open_device
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.types import TokenRun, run_step
from tests.support.models import random_model, save_safetensors, tiny_shape

_STAGED = 32 << 20  # the most that is staged where nothing waits for the device, with gaps between pieces
SHAPE = tiny_shape(layers=100, width=256, head_size=32, vocab=256)  # 160 MB in f16, no matrix larger than 0.5 MB


class Held:
    """The memory that the driver holds beyond what it held at first: what it does now, and what it did at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._first = self._read()

    @staticmethod
    def _read() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssShmem"))

    def look(self, *_: object) -> None:
        self.now = self._read() - self._first
        self.most = max(self.most, self.now)


def load(folder: Path, held: Held) -> Mapping[str, float]:
    """Load a model, run a step, and load another in its place."""
    found = {}
    for turn in ("first", "second"):
        with open_model(folder / "model.safetensors") as model:
            runner = load_runner(model, size=RunnerSize(2, max_tokens=2), progress=held.look)
        assert isinstance(runner, GpuRunner)
        with closing(runner):
            held.look()
            run_step(runner, [TokenRun(0, [1], rows=1)])
            held.look()
            found[turn] = held.now / runner.memory.total
            found[f"{turn} at most"] = held.most / runner.memory.total
    return found


def write(_folder: Path, held: Held) -> Mapping[str, float]:
    """Write to one buffer again and again, much or little at a time; and read it back again and again."""
    found = {}
    with closing(open_device().allocate()) as memory:
        for size in (100, 70_000, 3 << 20, 40 << 20):
            buffer, data = memory.create_buffer("some", size), np.ones(size, np.uint8)
            times = (200 << 20) // max(size, 10_000)
            for _ in range(times):
                memory.upload(buffer, 0, data)
                held.look()
            found[f"{times} writes of {size}"] = held.most / (memory.allocated_bytes + _STAGED)
        for _ in range(times):
            memory.read(buffer, 0, size)
            held.look()
        found["reads"] = held.most / (memory.allocated_bytes + size + _STAGED)
    return found


CASES: Mapping[str, Callable[[Path, Held], Mapping[str, float]]] = {each.__name__: each for each in (load, write)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_safetensors(random_model(SHAPE, 1, np.float16), path / "model.safetensors")
    return path


@pytest.mark.parametrize("case", CASES)
def test_the_driver_holds_what_was_planned(case: str, folder: Path) -> None:
    if not open_device().info.is_software or sys.platform != "linux":
        pytest.skip("the memory of this device is not the process's")
    command = [sys.executable, "-m", __name__, case, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for what, share in json.loads(done.stdout).items():
        assert share < 1.05, what


if __name__ == "__main__":
    open_device()
    json.dump(CASES[sys.argv[1]](Path(sys.argv[2]), Held()), sys.stdout)
