"""Draw the loss curve of a training run.

python -m tools.demo_model.plot_loss build/demo-model/loss.csv docs/demo-model/loss.svg
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from matplotlib.figure import Figure


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
    parser.add_argument("log", type=Path, help="loss.csv of a run: step, loss, Unix time")
    parser.add_argument("output", type=Path, help="the picture to write")
    options = parser.parse_args()
    with options.log.open(newline="") as file:
        by_step = {int(step): float(loss) for step, loss, _ in csv.reader(file)}
    draw(sorted(by_step.items()), options.output)


if __name__ == "__main__":
    main()
