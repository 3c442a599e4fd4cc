"""Draws the figures of a load. Needs matplotlib, which the checks do not install."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tools.bench.load.figures import Figures

_PANELS = (
    ("first_median", "time to the first token, median (ms)"),
    ("first_95", "time to the first token, 95 % (ms)"),
    ("between_median", "time between tokens, median (ms)"),
    ("tokens_per_second", "tokens per second"),
)


def draw(lines: Sequence[Figures], load: str, title: str, path: Path) -> None:
    """Draw the lines of a closed or an open load, with the cache and without, over the load's size."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    figure.suptitle(title)
    for axes, (field, label) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
        for cache, style in ((True, "o-"), (False, "s--")):
            chosen = [line for line in lines if line.load == load and line.cache == cache]
            axes.plot(
                [line.size for line in chosen],
                [getattr(line, field) for line in chosen],
                style,
                label=f"cache {'on' if cache else 'off'}",
            )
        axes.set(xlabel="clients" if load == "closed" else "conversations per second", ylabel=label, xscale="log")
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
