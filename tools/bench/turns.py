"""Compare the speed of two sides in alternating runs, so that a change of the machine's speed affects both.

A side may be another commit of this project, each measured by its own tools. `compared` turns a function that
measures its own working tree into a command. The command can also compare two trees.
"""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

T = TypeVar("T")
Figures: TypeAlias = Mapping[str, float]
"""What one run gives: the name of a figure, with its unit, -> its value."""

HERE = Path(__file__).resolve().parents[2]

against_option = click.option(
    "--against",
    "other",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure the code of this working tree and this one in turns.",
)
rounds_option = click.option("--rounds", default=3, show_default=True, help="Turns of each side that is compared.")


def comma_separated(kind: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str], list[T]]:
    """Return the callback of a click option that splits a comma-separated text and converts each part with `kind`."""
    return lambda _context, _parameter, text: [kind(part) for part in text.split(",") if part]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison. `measure` runs the side in a new process and returns its figures."""

    name: str
    measure: Callable[[], Figures]


def compare(first: Side, second: Side, rounds: int) -> None:
    """Run both sides in alternation. Print, for every figure, both medians and the ratio second / first."""
    before, after = take_turns([first, second], rounds)
    click.echo(f"| | {first.name} | {second.name} | ratio, median of {rounds} rounds (least-greatest) |")
    click.echo("|---|---|---|---|")
    for figure in before:
        medians = " | ".join(show(statistics.median(side[figure])) for side in (before, after))
        click.echo(f"| {figure} | {medians} | {show_ratios(before[figure], after[figure])} |")


def take_turns(sides: Sequence[Side], rounds: int) -> list[dict[str, list[float]]]:
    """Run each side once per round. Return for each side a dict from a figure's name to its value in every round."""
    runs: list[list[Figures]] = [[] for _ in sides]
    for number in range(1, rounds + 1):
        click.echo(f"round {number} of {rounds}", err=True)
        for side, figures in zip(sides, runs, strict=True):
            figures.append(side.measure())
    return [{name: [run[name] for run in figures] for name in figures[0]} for figures in runs]


def show_ratios(before: Sequence[float], after: Sequence[float]) -> str:
    """Format the ratios after / before of the rounds as a text: the median, then the least and the greatest."""
    ratios = [two / one for one, two in zip(before, after, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def against(root: Path, measure: Callable[[Path], Figures], rounds: int) -> None:
    """Compare this working tree with `root`, the working tree of another commit, and print the comparison."""
    compare(Side(f"{root}", lambda: measure(root)), Side("this tree", lambda: measure(HERE)), rounds)


def compared(module: str) -> Callable[[Callable[..., Figures]], Callable[..., None]]:
    """Return a decorator that makes a measuring function the click command of `python -m MODULE`.

    With --against, the command compares another working tree with this one. The body returns figures, which the command
    prints.
    """

    def decorate(measure: Callable[..., Figures]) -> Callable[..., None]:
        @against_option
        @rounds_option
        @click.option("--json", "as_json", is_flag=True, help="Print the figures as one line of JSON.")
        @functools.wraps(measure)
        def command(*, other: Path | None, rounds: int, as_json: bool, **options: Any) -> None:  # noqa: ANN401
            if other is not None:
                arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
                against(other, lambda tree: _measure_tree(module, tree, arguments), rounds)
                return
            figures = measure(**options)
            if as_json:
                click.echo(json.dumps(figures))
                return
            for name, value in figures.items():
                click.echo(f"{name}: {show(value)}")

        return command

    return decorate


def run_module(module: str, arguments: Sequence[str], folder: Path = HERE) -> str:
    """Run `python -m MODULE` in `folder` and return its output. Its stderr goes to this terminal."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure_forward(arguments: Sequence[str], tree: Path = HERE) -> Figures:
    """Run `python -m tools.bench` of a working tree and return its tokens per second by figure."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        run_module("tools.bench", [*arguments, "--out", str(out)], tree)
        results = json.loads(out.read_text("utf-8"))
    return {
        f"{result['shape']} {line['phase']}, {line['slots']} slots, {line['tokens']} tokens": line["tokens_per_second"]
        for result in results
        for line in result["results"]
    }


def _measure_tree(module: str, tree: Path, arguments: Sequence[str]) -> Figures:
    output = run_module(module, ["--json", *arguments], tree)
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def show(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"
