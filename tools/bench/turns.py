"""Measure sides in turns, so that a change of the machine's speed affects all of them, and compare their figures.

`python -m tools.bench.turns TREE MODULE [OPTIONS]` compares the working tree of another commit with this one: it runs
the benchmark MODULE in both, such as `tools.bench.host`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeAlias, TypeVar

import click

T = TypeVar("T")
Figures: TypeAlias = Mapping[str, float]
"""What one run gives: the name of a figure, with its unit, -> its value."""
Runs: TypeAlias = Mapping[str, Sequence[float]]
"""What all rounds of one side give: the name of a figure -> its value in each round."""

HERE = Path(__file__).resolve().parents[2]

rounds_option = click.option("--rounds", default=3, show_default=True, help="Turns of each side that is compared.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the figures as one line of JSON.")


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


def print_figures(figures: Figures, as_json: bool) -> None:
    lines = [f"{name}: {show(value)}" for name, value in figures.items()]
    click.echo(json.dumps(figures) if as_json else "\n".join(lines))


def show(value: float) -> str:
    if isinstance(value, int) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("tree", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("module")
@rounds_option
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(tree: Path, module: str, rounds: int, options: Sequence[str]) -> None:
    """Compare the working tree TREE with this one, by the figures that a benchmark MODULE prints with --json."""
    sides = {str(tree): partial(_measure, tree, module, options), "this tree": partial(_measure, HERE, module, options)}
    print_table(take_turns(sides, rounds))


def _measure(tree: Path, module: str, options: Sequence[str]) -> Figures:
    command = [sys.executable, "-m", module, "--json", *options]
    done = subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
