"""`python -m tools.bench.loading`: load a random model in several formats of weights, and measure time and memory.

The model has the shape of a published one. Each file is loaded by an engine in a process of its own, with the file in
the page cache and without a recorded fingerprint. Seconds of the processor change less beside other work than seconds
of the clock.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import click
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
def main(shape: str, weights: Sequence[str], suffix: str, device: str) -> None:
    """Print a table of how long files take to load, and how much memory they take."""
    rows = []
    with TemporaryDirectory() as name:
        source = write_random_model(SHAPES[shape], Path(name) / "source.safetensors")
        for each in weights:
            file = Path(name) / f"{shape}-{each}{suffix}"
            with open_model(source) as model:
                convert_model(model, file, each)
            shaders = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
            own = {"XDG_CACHE_HOME": name, "MESA_SHADER_CACHE_DIR": shaders}  # kernels stay, fingerprints don't
            with patch.dict(os.environ, own), ProcessPoolExecutor(1, get_context("spawn")) as process:
                rows.append(process.submit(_measure, file, device).result())
            file.unlink()
    click.echo(table(_HEAD, rows))


def _measure(file: Path, device: str) -> tuple[str, ...]:
    return asyncio.run(_load(file, device))


async def _load(file: Path, device: str) -> tuple[str, ...]:
    """Load a model in this process, run a token, and return the row of the file."""
    begun, cpu = time.perf_counter(), time.process_time()
    engine = await Engine.load(file, LoadSettings(device, tokenizer="none"), num_slots=1, cache=None)
    loaded, cpu = time.perf_counter(), time.process_time() - cpu
    async for _ in engine.generate(GenerateRequest([1], max_tokens=1, sampling=SamplingParams(temperature=0.0))):
        pass
    first_token = time.perf_counter() - loaded
    planned = engine.info.device_memory
    memory = psutil.Process().memory_info().rss
    await engine.close()
    size, seconds = file.stat().st_size, loaded - begun
    return (
        file.name,
        f"{size / 1e9:.2f}",
        f"{seconds:.1f} ({cpu:.1f})",
        f"{size / 1e6 / seconds:,.0f}",
        "" if planned is None else f"{planned.total / 1e9:.2f}",
        f"{memory / 1e9:.2f}",
        f"{first_token:.2f}",
    )


if __name__ == "__main__":
    main()
