"""`python -m tools.bench.host`: the host's cost of a token, as tokens a second; also of another commit, in turns."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tools.bench.commits import HERE, use_root
from tools.bench.turns import Figures, against, last_line, run_module, show

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option("--modes", default="scheduler,engine,http", show_default=True)
@click.option("--samplers", default="nucleus,penalties", show_default=True)
@click.option("--slots", default="8,128", show_default=True)
@click.option("--tokens", default=128, show_default=True, help="Of each request.")
@click.option("--seconds", default=3.0, show_default=True, help="How long each figure is measured.")
@click.option("--root", type=_FOLDER, default=HERE, help="Measure the code of this working tree instead.")
@click.option("--against", "other", type=_FOLDER, help="Measure the code of this working tree and this one in turns.")
@click.option("--rounds", default=3, show_default=True, help="With --against.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one line of JSON.")
def main(
    modes: str,
    samplers: str,
    slots: str,
    tokens: int,
    seconds: float,
    root: Path,
    other: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure scheduler, engine and HTTP streaming with a runner that answers at once.

    It has a vocabulary of 65,536 tokens and gives 128 candidates a row.
    """
    if other is not None:
        options = ["--modes", modes, "--samplers", samplers, "--slots", slots]
        options += ["--tokens", str(tokens), "--seconds", str(seconds), "--json"]
        against(other, lambda tree: _measure_tree(tree, options), rounds)
        return
    use_root(root)
    figures = _measure(modes.split(","), samplers.split(","), [int(part) for part in slots.split(",")], tokens, seconds)
    if as_json:
        click.echo(json.dumps(figures))
        return
    click.echo("| tok/s | |\n|---|---|")
    for name, value in figures.items():
        click.echo(f"| {name} | {show(value)} |")


def _measure_tree(tree: Path, options: list[str]) -> Figures:
    return last_line(run_module("tools.bench.host", ["--root", str(tree), *options]))


def _measure(modes: list[str], samplers: list[str], slots: list[int], tokens: int, seconds: float) -> Figures:
    from tools.bench.host.modes import MODES, Load

    return {
        f"{mode}, {sampler}, {count} slots": MODES[mode](Load(count, sampler, tokens, seconds))
        for mode in modes
        for sampler in samplers
        for count in slots
    }


if __name__ == "__main__":
    main()
