"""Whether a model gives everything back: memory of host and device after each round of loading and closing it.

python -m tools.bench.load_unload MODEL --rounds 20
"""

from __future__ import annotations

import gc
import json
from pathlib import Path

import click

from rnn_engine.forward import GpuRunner
from rnn_engine.gpu import open_device
from rnn_engine.loading.runner import load_runner, open_model
from rnn_engine.types import TokenRun, run_step


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--weights", type=click.Choice(["f16", "f32"]), default="f16", show_default=True)
@click.option("--rounds", default=20, show_default=True)
def main(model: Path, device: str, weights: str, rounds: int) -> None:
    """Print a line of JSON a round: megabytes while the model is loaded, and after it was closed."""
    for number in range(1, rounds + 1):
        with open_model(model) as opened:
            runner = load_runner(opened, device, weights=weights, warm_up=True)
        run_step(runner, [TokenRun(0, [1, 2, 3], rows=1)])
        loaded = {"host": resident_megabytes(), "device": device_megabytes(device)}
        on_gpu = isinstance(runner, GpuRunner)
        runner.close()
        del runner
        gc.collect()
        closed = {"host": resident_megabytes(), "device": device_megabytes(device) if on_gpu else 0.0}
        click.echo(json.dumps({"round": number, "loaded": loaded, "closed": closed}))


def resident_megabytes() -> float:
    """Return what of this process lies in memory, in MB; a software device's buffers are a part of it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6, 1)


def device_megabytes(device: str) -> float:
    """Return what the models of this process hold on the device, in MB."""
    return 0.0 if device == "cpu" else round(open_device(device).allocated_bytes / 1e6, 3)


if __name__ == "__main__":
    main()
