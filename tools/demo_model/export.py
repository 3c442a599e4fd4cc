"""Write a run's model file as it ships, and draw the loss curve of its training.

    python -m tools.demo_model.export build/demo-model rnn_engine/demo/demo.safetensors docs/demo-model/loss.svg

The file is safetensors, f16, with BlinkDL's names. The adapters act as x @ w1, as in BlinkDL's own files.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from matplotlib.figure import Figure
from safetensors.torch import save_file

from tools.demo_model.model import load_model, shipped_tensors


def draw(points: list[tuple[int, float]], output: Path) -> None:
    """Draw a loss curve and write it to `output`. Each point is a step and its mean loss per learnt token."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True), linewidth=1)
    axes.set(xlabel="step", ylabel="loss of a learnt token (nats)", yscale="log", title="Training of the demo model")
    axes.grid(True, which="both", alpha=0.3)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output)


def main(run: Path, output: Path, picture: Path) -> None:
    """Export the run in a folder with checkpoint.pt and loss.csv (step, loss, Unix time)."""
    tensors = shipped_tensors(load_model(run / "checkpoint.pt"))
    save_file(tensors, output, metadata={"format": "pt"})
    print(f"{sum(value.numel() for value in tensors.values())} parameters, {output.stat().st_size} bytes -> {output}")
    with (run / "loss.csv").open(newline="") as file:
        by_step = {int(step): float(loss) for step, loss, _ in csv.reader(file)}
    draw(sorted(by_step.items()), picture)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
