"""`python -m tools.bench.loading`: load random models of the sizes of real ones, and measure the time and the memory.

Each model is written to a file, and loaded by an engine in a process of its own, with the file in the page cache and
without a recorded fingerprint. A software device's memory is shared memory of the process (RssShmem of Linux), so what
the driver holds is measured, too. Other work on the machine changes seconds of the processor less than seconds of the
clock.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import click
import numpy as np
import psutil
from numpy.typing import NDArray

from rnn_engine.convert.convert import convert_model
from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.model import OpenModel
from rnn_engine.quantised import BLOCK_FORMATS, Blocks, blocks_of_row, bytes_of_codes
from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import ModelShape
from tools.bench.peers import SHAPES
from tools.bench.predict import list_tensors
from tools.bench.turns import comma_separated
from tools.markdown import table

_POOL: Final = 1 << 24  # random numbers, and random bytes, of which all matrices are made


class RandomModel:
    """A model of which each tensor is made when it is read, with what `convert_model` needs of a model.

    Matrices are in the blocks of the format `weights`, if there are such; all other tensors are in f16.
    """

    path = Path("random.safetensors")

    def __init__(self, shape: ModelShape, weights: str) -> None:
        self.shape = shape
        self._format = BLOCK_FORMATS.get(weights)
        block_type = None if self._format is None else self._format.name.upper()
        self.tensors = {
            name: replace(info, block_type=block_type) if _is_matrix(name, info) else info
            for name, info in list_tensors(shape).items()
        }
        self._generator = np.random.default_rng(1)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def has(self, name: str) -> bool:
        return name in self.tensors

    def block_type(self, name: str) -> str | None:
        return self.tensors[name].block_type

    def tensor(self, name: str) -> NDArray[Any]:
        info = self.tensors[name]
        if _is_matrix(name, info):
            return np.resize(self._numbers, info.shape)
        if name.endswith(("1", "2")) and len(info.shape) == 2:  # of an adapter
            return (self._numbers[: prod(info.shape)]).reshape(info.shape)
        return self._generator.uniform(0, 1, info.shape).astype(info.dtype)

    def blocks(self, name: str) -> Blocks | None:
        info, chosen = self.tensors[name], self._format
        if chosen is None or info.block_type is None:
            return None
        num_rows, num_columns = info.shape
        shape = num_rows, blocks_of_row(num_columns, chosen.block_columns)
        deviation = self.shape.width**-0.5
        scale = deviation / (74 if chosen.code_bits == 8 else 4.6)  # of codes that are all as likely
        figures = np.full((*shape, chosen.num_figures), scale, np.float16)
        return Blocks(chosen, num_columns, np.resize(self._codes, (*shape, bytes_of_codes(chosen))), figures)

    @cached_property
    def _numbers(self) -> NDArray[np.float16]:
        numbers = self._generator.standard_normal(_POOL, np.float32) * np.float32(self.shape.width**-0.5)
        return numbers.astype(np.float16)

    @cached_property
    def _codes(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._generator.bytes(_POOL), np.uint8)


def _is_matrix(name: str, info: TensorInfo) -> bool:
    return name.endswith(".weight") and len(info.shape) == 2


def write_random_model(path: Path) -> None:
    """Write the model that the file's name describes, such as 7.2B-q4_0.gguf: a shape of `SHAPES`, and its weights."""
    shape, _, weights = path.stem.rpartition("-")
    convert_model(cast(OpenModel, RandomModel(SHAPES[shape], weights)), path)


def measure(path: Path, device: str) -> Mapping[str, Any]:
    """Load the model in a process of its own, and return its figures."""
    with path.open("rb") as file:  # into the page cache
        while file.read(1 << 24):
            pass
    with TemporaryDirectory() as cache:
        shaders = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        own = {"XDG_CACHE_HOME": cache, "MESA_SHADER_CACHE_DIR": shaders}  # drivers' kernels stay, fingerprints don't
        command = [sys.executable, "-m", "tools.bench.loading", "--one", str(path), "--device", device]
        process = subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True)
        peak = dict.fromkeys(_MEMORY, 0)
        while process.poll() is None:
            held = _held(process.pid)
            peak = {name: max(peak[name], held.get(name, 0)) for name in peak}
            time.sleep(0.01)
        assert process.stdout is not None
        found = json.loads(process.stdout.read().splitlines()[-1])
    return {**found, "peak": peak}


_MEMORY: Final = ("RssShmem", "RssAnon")


def _held(pid: int) -> dict[str, int]:
    """Return the bytes of shared and of other memory of a process, by their names in Linux."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines)
    return {name: 1024 * int(value.split()[0]) for name, value in pairs if name in _MEMORY}


async def load(path: Path, device: str) -> dict[str, Any]:
    """Load a model in this process, run a token, and return the figures."""
    process, memory = psutil.Process(), {}
    phases: dict[str, tuple[float, float]] = {}  # when each began: by the clock, and in seconds of the processor

    def note(what: str, *_: object) -> None:
        if what not in phases:
            phases[what], memory[what] = (time.time(), time.process_time()), _held(os.getpid())

    note("opening")
    engine = await Engine.load(path, LoadSettings(device, tokenizer="none"), num_slots=1, cache=None, progress=note)
    note("ready")
    request = GenerateRequest([1], max_tokens=1, sampling=SamplingParams(temperature=0.0))
    async for _ in engine.generate(request):
        note("first token")
    planned = engine.info.device_memory
    found = {
        "phases": {what: (clock - process.create_time(), used) for what, (clock, used) in phases.items()},
        "planned": None if planned is None else planned.total,
        "before": memory["opening"],
        "after": _held(os.getpid()),
    }
    await engine.close()
    return found


def row(path: Path, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the figures of a model as a row of the table."""
    phases, size = found["phases"], path.stat().st_size
    clock, used = (end - begun for begun, end in zip(phases["opening"], phases["ready"], strict=True))
    most, before = found["peak"]["RssAnon"], found["before"]["RssAnon"]
    return (
        path.name,
        f"{size / 1e9:.2f}",
        f"{phases['ready'][0]:.1f}",
        f"{clock:.1f} ({used:.1f})",
        f"{size / 1e6 / clock:,.0f} ({2 * size / 1e6 / used:,.0f})",
        "" if found["planned"] is None else f"{found['planned'] / 1e9:.2f}",
        f"{found['peak']['RssShmem'] / 1e9:.2f}, {found['after']['RssShmem'] / 1e9:.2f}",
        f"{before / 1e6:,.0f}, {(most - before) / 1e6:,.0f}",
        f"{phases['first token'][0] - phases['ready'][0]:.2f}",
    )


_HEAD: Final = (
    "file",
    "GB",
    "ready since the start, s",
    "loading, s (processor s)",
    "MB/s (of two processors)",
    "planned, GB",
    "held, GB: most, after",
    "host, MB: before, more",
    "first token, s",
)


def limits() -> str:
    """Return the speeds of this moment that bound a load, for one core."""
    data = np.random.default_rng(1).bytes(1 << 28)
    source = np.frombuffer(data, np.uint8)

    def rate(work: Callable[[], object]) -> str:
        begun = time.perf_counter()
        work()
        return f"{len(data) / 1e6 / (time.perf_counter() - begun):,.0f} MB/s"

    target = np.empty_like(source)
    rates = {
        "sha256": rate(lambda: hashlib.sha256(data).digest()),
        "a copy to new memory": rate(lambda: np.copyto(target, source)),
        "a copy": rate(lambda: np.copyto(target, source)),
    }
    return ", ".join(f"{name} {found}" for name, found in rates.items())


@click.command()
@click.option(
    "--models",
    callback=comma_separated(str),
    default="7.2B-q4_0.gguf,1.5B-f16.safetensors",
    show_default=True,
    help="Files to write and load: a shape, weights and the ending of a format.",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Where to write them, in place of a temporary folder.")
@click.option("--device", default="0", show_default=True, help="As for `rnn-engine serve`.")
@click.option("--one", type=click.Path(path_type=Path), hidden=True)
def main(models: Sequence[str], folder: Path | None, device: str, one: Path | None) -> None:
    """Print a table of how long random models take to load, and how much memory they take meanwhile and afterwards."""
    if one is not None:
        click.echo(json.dumps(asyncio.run(load(one, device))))
        return
    rows = []
    with TemporaryDirectory(dir=folder) as temporary:
        for name in models:
            path = Path(temporary) / name
            write_random_model(path)
            click.echo(f"{name}: one core does {limits()}", err=True)
            rows.append(row(path, measure(path, device)))
            path.unlink()
    click.echo(table(_HEAD, rows))


if __name__ == "__main__":
    main()
