"""Measure two sides in turns, so that a machine that gets slower or faster meanwhile does so for both."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import click

from tools.bench.commits import HERE

Figures: TypeAlias = Mapping[str, float]
"""What one run gives: the name of a figure, with its unit, -> its value."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared. `measure` runs in a new process each time."""

    name: str
    measure: Callable[[], Figures]


def compare(first: Side, second: Side, rounds: int) -> None:
    """Run the sides in turns and print, for every figure, both medians and the ratio second / first of each round."""
    runs: list[tuple[Figures, Figures]] = []
    for number in range(1, rounds + 1):
        click.echo(f"round {number} of {rounds}", err=True)
        runs.append((first.measure(), second.measure()))
    click.echo(f"| | {first.name} | {second.name} | ratio, median of {rounds} rounds (least-greatest) |")
    click.echo("|---|---|---|---|")
    for figure in runs[0][0]:
        before, after = ([run[side][figure] for run in runs] for side in (0, 1))
        ratios = [two / one for one, two in zip(before, after, strict=True)]
        click.echo(
            f"| {figure} | {show(statistics.median(before))} | {show(statistics.median(after))} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) |"
        )


def against(root: Path, measure: Callable[[Path], Figures], rounds: int) -> None:
    """Compare another commit, whose working tree is `root`, with this one."""
    compare(Side(f"{root}", lambda: measure(root)), Side("this tree", lambda: measure(HERE)), rounds)


def run_module(module: str, arguments: Sequence[str], folder: Path = HERE) -> str:
    """Run `python -m MODULE` in `folder` and return what it prints. What it says of errors goes to this terminal."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def last_line(output: str) -> Figures:
    """Parse the figures that a run printed as its last line, in JSON."""
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def show(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"
