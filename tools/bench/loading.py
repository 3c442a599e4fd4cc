"""`python -m tools.bench.loading`: load a random model in several formats of weights, and measure time and memory.

The model has the shape of a published one. Each file is loaded by an engine in a process of its own, with the file in
the page cache and without a recorded fingerprint. Seconds of the processor change less beside other work than seconds
of the clock. What one core hashes and copies a second, at the same moment, is the limit to compare with.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import psutil

from rnn_engine.convert.convert import convert_model
from rnn_engine.engine import Engine
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest, SamplingParams
from tools.bench.peers import SHAPES, write_random_model
from tools.bench.turns import comma_separated
from tools.markdown import table

_HEAD = ("file", "GB", "loading, s (of the processor)", "MB/s", "planned, GB", "process, GB", "first token, s")


@click.command()
@click.option("--shape", type=click.Choice(list(SHAPES)), default="1.5B", show_default=True)
@click.option("--weights", callback=comma_separated(str), default="f16,int8", show_default=True)
@click.option("--suffix", default=".safetensors", show_default=True, help="The format of the files, or .gguf, .pth.")
@click.option("--device", default="0", show_default=True, help="As for `rnn-engine serve`.")
@click.option("--one", type=click.Path(path_type=Path), hidden=True)
def main(shape: str, weights: Sequence[str], suffix: str, device: str, one: Path | None) -> None:
    """Print a table of how long files take to load, and how much memory they take."""
    if one is not None:
        click.echo(json.dumps(asyncio.run(_load(one, device))))
        return
    rows = []
    with TemporaryDirectory() as name:
        source = write_random_model(SHAPES[shape], Path(name) / "source.safetensors")
        for each in weights:
            file = Path(name) / f"{shape}-{each}{suffix}"
            with open_model(source) as model:
                convert_model(model, file, each)
            click.echo(f"{file.name}: one core does {_limits()}", err=True)
            rows.append(_row(file, _measure(file, device)))
            file.unlink()
    click.echo(table(_HEAD, rows))


def _measure(file: Path, device: str) -> Mapping[str, float]:
    """Load the model in a process of its own, and return its figures."""
    with TemporaryDirectory() as cache:
        shaders = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        own = {"XDG_CACHE_HOME": cache, "MESA_SHADER_CACHE_DIR": shaders}  # drivers' kernels stay, fingerprints don't
        command = [sys.executable, "-m", "tools.bench.loading", "--one", str(file), "--device", device]
        done = subprocess.run(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, check=True)
    found: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


async def _load(file: Path, device: str) -> dict[str, float]:
    """Load a model in this process, run a token, and return the figures."""
    begun, cpu = time.perf_counter(), time.process_time()
    engine = await Engine.load(file, LoadSettings(device, tokenizer="none"), num_slots=1, cache=None)
    loaded, cpu = time.perf_counter(), time.process_time() - cpu
    async for _ in engine.generate(GenerateRequest([1], max_tokens=1, sampling=SamplingParams(temperature=0.0))):
        pass
    planned = engine.info.device_memory
    figures = {
        "seconds": loaded - begun,
        "cpu_seconds": cpu,
        "first_token": time.perf_counter() - loaded,
        "planned": 0 if planned is None else planned.total,
        "process": psutil.Process().memory_info().rss,
    }
    await engine.close()
    return figures


def _row(file: Path, found: Mapping[str, float]) -> tuple[str, ...]:
    size = file.stat().st_size
    return (
        file.name,
        f"{size / 1e9:.2f}",
        f"{found['seconds']:.1f} ({found['cpu_seconds']:.1f})",
        f"{size / 1e6 / found['seconds']:,.0f}",
        f"{found['planned'] / 1e9:.2f}",
        f"{found['process'] / 1e9:.2f}",
        f"{found['first_token']:.2f}",
    )


def _limits() -> str:
    """Return how fast one core hashes bytes and copies them to new memory."""
    data = np.random.default_rng(1).bytes(1 << 28)
    begun = time.perf_counter()
    hashlib.sha256(data).digest()
    hashed = time.perf_counter()
    bytearray(data)
    copied = time.perf_counter()
    megabytes = len(data) / 1e6
    return f"sha256 {megabytes / (hashed - begun):,.0f} MB/s, a copy {megabytes / (copied - hashed):,.0f} MB/s"


if __name__ == "__main__":
    main()
