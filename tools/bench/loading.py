"""How fast a model's file becomes a model on the device, and how much host memory that takes beyond the model.

python -m tools.bench.loading table --shape 0.4B

Each load is a process of its own, with the drivers' caches warm. Cold: the file was dropped from the page cache before.
The limit is what the same process then needs to read the file with one buffer, cold or warm as before, and to write
once to as much new memory as the load left it with: on a software device the model lies there. Memory beyond is the
peak of the load above what the process holds after it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import click
import numpy as np

from rnn_engine.convert.convert import convert_model
from rnn_engine.gpu import open_device
from rnn_engine.loading.runner import load_runner, open_model
from tools.bench.load_unload import resident_megabytes
from tools.bench.model_files import find_model
from tools.bench.random_model import SHAPES

_CASES = (("f16", "f16"), ("f32", "f16"), ("f16", "int8"), ("f16", "int4"), ("int8", "stored"), ("int4", "stored"))
_READ_BYTES = 8 << 20


@click.group()
def main() -> None:
    """See the module's first lines."""


@main.command()
@click.option("--shape", type=click.Choice(list(SHAPES)), default="0.4B", show_default=True)
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve, but for cpu.")
@click.option("--rounds", default=3, show_default=True)
def table(shape: str, device: str, rounds: int) -> None:
    """Print a table: the file's weights, those on the device, medians of seconds and of their ratios to the limit."""
    click.echo("| file | device | file, GB | cold, s | to limit | warm, s | GB/s | to limit | memory beyond, MB |")
    click.echo("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        drawn = find_model(shape, Path(folder))
        for stored, weights in _CASES:
            path = drawn
            if stored != "f16":
                path = Path(folder) / f"{shape}-{stored}.safetensors"
                if not path.exists():
                    with open_model(drawn) as model:
                        convert_model(model, path, stored)
            _load(path, device, weights, cold=False)  # fills the driver's cache
            size = path.stat().st_size / 1e9
            cold, warm = ([_load(path, device, weights, cold=cold) for _ in range(rounds)] for cold in (True, False))
            seconds = statistics.median(each[0] for each in warm)
            cells = [stored, weights, f"{size:.2f}"]
            cells += [f"{statistics.median(each[0] for each in cold):.2f}", _to_limit(cold)]
            cells += [f"{seconds:.2f}", f"{size / seconds:.2f}", _to_limit(warm)]
            cells.append(f"{max(each[2] for each in warm) / 1e6:.0f}")
            click.echo(f"| {' | '.join(cells)} |")


@main.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.argument("device")
@click.argument("weights")
@click.option("--cold", is_flag=True)
def once(model: Path, device: str, weights: str, *, cold: bool) -> None:
    """Load MODEL once; print the seconds, those of the limit, and the bytes of memory that were needed for a while."""
    open_device(device)
    if cold:
        _drop(model)
    before = resident_megabytes()
    start = time.perf_counter()
    with open_model(model) as opened:
        runner = load_runner(opened, device, weights=weights)
    seconds = time.perf_counter() - start
    with closing(runner):
        after = resident_megabytes()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if cold:
            _drop(model)
        start = time.perf_counter()
        buffer = bytearray(_READ_BYTES)
        with model.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
        np.full(int(max(0.0, after - before) * 1e6), 1, np.uint8)
        limit = time.perf_counter() - start
        click.echo(json.dumps([seconds, limit, peak - after * 1e6]))


def _load(path: Path, device: str, weights: str, *, cold: bool) -> tuple[float, float, float]:
    command = [sys.executable, "-m", "tools.bench.loading", "once", str(path), device, weights]
    done = subprocess.run([*command, *(["--cold"] if cold else [])], check=True, capture_output=True, text=True)
    seconds, limit, beyond = json.loads(done.stdout)
    return seconds, limit, beyond


def _to_limit(loads: list[tuple[float, float, float]]) -> str:
    return f"{statistics.median(seconds / limit for seconds, limit, _ in loads):.2f}"


def _drop(path: Path) -> None:
    """Drop the file's pages from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
