"""`python -m tools.bench.late_request`: how long a short request waits for its first token beside a long prompt."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rnn_engine.loading.settings import LoadSettings
from tools.bench.commits import random_model
from tools.bench.turns import Figures, compared

if TYPE_CHECKING:
    from rnn_engine.engine import Engine


@click.command()
@click.option("--shape", default="0.1B", show_default=True, help="Of a random model; see tools/bench/random_model.py.")
@click.option("--layers", default=0, show_default=True, help="Of the model; 0 = as many as the shape has.")
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--prompt", default=4000, show_default=True, help="Tokens of the prompt that comes first.")
@click.option("--late", default=20, show_default=True, help="Tokens of the request that comes later.")
@click.option("--delay", default=0.05, show_default=True, help="Seconds between them.")
@click.option("--repeats", default=3, show_default=True, help="The figures are medians.")
@compared("tools.bench.late_request")
def main(shape: str, layers: int, device: str, prompt: int, late: int, delay: float, repeats: int) -> Figures:
    """Measure time to first token of a request that arrives while a long prompt runs alone, through the engine."""
    with tempfile.TemporaryDirectory() as folder:
        path = _write_model(shape, layers or None, Path(folder))
        return asyncio.run(_measure(path, device, [1 + n % 1000 for n in range(prompt)], [2] * late, delay, repeats))


def _write_model(shape: str, layers: int | None, folder: Path) -> Path:
    from safetensors.numpy import save_file

    model = random_model(shape, layers)
    path = folder / "model.safetensors"
    save_file({name: model.tensor(name) for name in model.names}, path)
    return path


async def _measure(
    path: Path, device: str, prompt: list[int], late: list[int], delay: float, repeats: int
) -> dict[str, float]:
    from rnn_engine.engine import Engine

    alone, beside = [], []
    async with await Engine.load(path, LoadSettings(device, "none"), cache=None) as engine:
        for _ in range(repeats):
            alone.append(await _first_token(engine, late))
            first = asyncio.create_task(_first_token(engine, prompt))
            await asyncio.sleep(delay)
            beside.append(await _first_token(engine, late))
            if first.done():
                raise click.ClickException("the long prompt ended first; expected a longer --prompt")
            first.cancel()
            await asyncio.wait([first])
    return {
        "first token of the late request, ms": 1e3 * statistics.median(beside),
        "the same without the long prompt, ms": 1e3 * statistics.median(alone),
    }


async def _first_token(engine: Engine, prompt: list[int]) -> float:
    """Seconds until the first token of `prompt` comes."""
    from rnn_engine.requests import GenerateRequest, TextDelta

    begun = time.perf_counter()
    events = engine.generate(GenerateRequest(prompt, max_tokens=2, stop_tokens=()))
    try:
        async for event in events:
            if isinstance(event, TextDelta):
                return time.perf_counter() - begun
    finally:
        await events.aclose()
    raise AssertionError("a request without a token")


if __name__ == "__main__":
    main()
