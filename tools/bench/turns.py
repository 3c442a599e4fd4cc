"""Measure sides in turns, so that a change of the machine's speed affects all of them, and compare their figures.

A side may be another commit of this project, measured by its own tools. `compared` turns a function that measures its
own working tree into a command that can also compare two trees.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, TypeVar

import click

T = TypeVar("T")
Figures: TypeAlias = Mapping[str, float]
"""What one run gives: the name of a figure, with its unit, -> its value."""
Runs: TypeAlias = Mapping[str, Sequence[float]]
"""What all rounds of one side give: the name of a figure -> its value in each round."""

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


def take_turns(sides: Mapping[str, Callable[[], Figures]], rounds: int) -> dict[str, Runs]:
    """Measure each side once per round, and return the results by the sides' names."""
    figures: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        click.echo(f"round {number} of {rounds}", err=True)
        for name, measure in sides.items():
            figures[name].append(measure())
    return {side: {name: [run[name] for run in runs] for name in runs[0]} for side, runs in figures.items()}


def print_table(sides: Mapping[str, Runs]) -> None:
    """Print a row for each figure of the first side: the sides' medians, and the others' ratios to the first side.

    Each ratio is of two figures of one round; the median of all rounds is shown, with the least and the greatest.
    """
    (first_name, first), *others = sides.items()
    heads = [first_name, *(head for name, _ in others for head in (name, "times (least-greatest)"))]
    click.echo(f"| | {' | '.join(heads)} |\n|{'---|' * (1 + len(heads))}")
    for figure, values in first.items():
        cells = [figure, show(median(values))]
        for _, run in others:
            ratios = [two / one for one, two in zip(values, run[figure], strict=True)]
            cells += [show(median(run[figure])), f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"]
        click.echo(f"| {' | '.join(cells)} |")


def show(value: float) -> str:
    if isinstance(value, int) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def compare_trees(other: Path, measure: Callable[[Path], Figures], rounds: int) -> None:
    """Compare the working tree `other` with this one. `measure` returns the figures of a tree."""
    print_table(take_turns({str(other): partial(measure, other), "this tree": partial(measure, HERE)}, rounds))


def run_module(module: str, arguments: Sequence[str], tree: Path) -> str:
    """Run `python -m MODULE` of a working tree and return its output. Its stderr goes to this terminal."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE, text=True).stdout


def compared(module: str) -> Callable[[Callable[..., Figures]], Callable[..., None]]:
    """Return a decorator that makes a measuring function the click command of `python -m MODULE`.

    The command prints the figures that the function returns. With --against, it compares another working tree with this
    one.
    """

    def decorate(measure: Callable[..., Figures]) -> Callable[..., None]:
        @against_option
        @rounds_option
        @click.option("--json", "as_json", is_flag=True, help="Print the figures as one line of JSON.")
        @functools.wraps(measure)
        def command(*, other: Path | None, rounds: int, as_json: bool, **options: Any) -> None:  # noqa: ANN401
            if other is not None:
                arguments = [part for name, value in options.items() for part in _as_option(name, value)]
                compare_trees(other, partial(_measure_tree, module, arguments), rounds)
                return
            figures = measure(**options)
            lines = [f"{name}: {show(value)}" for name, value in figures.items()]
            click.echo(json.dumps(figures) if as_json else "\n".join(lines))

        return command

    return decorate


def _as_option(name: str, value: object) -> list[str]:
    """Return the arguments that give an option of a command its value. A flag is a bool."""
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    return [f"--{name}", str(value)]


def _measure_tree(module: str, arguments: Sequence[str], tree: Path) -> Figures:
    output = run_module(module, ["--json", *arguments], tree)
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures
