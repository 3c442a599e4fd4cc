"""Write a run's model file as it ships, and draw the loss curve of its training.

    python -m tools.demo_model.export build/demo-model rnn_engine/demo/demo.safetensors docs/demo-model/loss.svg

The file is safetensors, f16, with BlinkDL's names. The adapters act as x @ w1, as in BlinkDL's own files.
"""

from __future__ import annotations

import argparse
import csv
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder with checkpoint.pt and loss.csv (step, loss, Unix time)")
    parser.add_argument("output", type=Path, help="the .safetensors file to write")
    parser.add_argument("picture", type=Path, help="the loss curve to write")
    options = parser.parse_args()
    tensors = shipped_tensors(load_model(options.run / "checkpoint.pt"))
    save_file(tensors, options.output, metadata={"format": "pt"})
    parameters = sum(value.numel() for value in tensors.values())
    print(f"{parameters} parameters, {options.output.stat().st_size} bytes -> {options.output}")
    with (options.run / "loss.csv").open(newline="") as file:
        by_step = {int(step): float(loss) for step, loss, _ in csv.reader(file)}
    draw(sorted(by_step.items()), options.picture)


if __name__ == "__main__":
    main()
