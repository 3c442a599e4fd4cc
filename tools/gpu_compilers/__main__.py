"""`python -m tools.gpu_compilers`: print what the compilers of AMD GPUs make of the kernels, without such a GPU.

With --against, only figures that differ from those of another working tree are printed, beside these.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import click

from tools.bench.turns import run_module
from tools.gpu_compilers import FAMILIES, Compiled, UnavailableError, chosen_kernels, compile_for
from tools.markdown import table

Figures: TypeAlias = dict[str, dict[str, str]]
"""The figures of each kernel, by its family and name, and by the column."""


@click.command()
@click.option("--family", "families", multiple=True, type=click.Choice(list(FAMILIES)), help="By default, all.")
@click.option("--kernel", "parts", multiple=True, help="Only kernels whose name contains one of these.")
@click.option(
    "--against",
    "other",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Also read the kernels of this working tree of the project, and print only what differs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def main(families: Sequence[str], parts: Sequence[str], other: Path | None, *, as_json: bool) -> None:
    """Print registers, waves, spills, and the loads of the innermost loop of each kernel for each family."""
    families = families or list(FAMILIES)
    try:
        figures = _read(families, parts)
    except UnavailableError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(figures))
        return
    if other is not None:
        options = [*(part for name in families for part in ("--family", name))]
        options += [part for name in parts for part in ("--kernel", name)]
        before = json.loads(run_module("tools.gpu_compilers", [*options, "--json"], other))
        figures = _differences(before, figures)
    click.echo(
        table(("kernel", *next(iter(figures.values()), {})), ((name, *row.values()) for name, row in figures.items()))
    )


def _read(families: Sequence[str], parts: Sequence[str]) -> Figures:
    kernels = {
        name: text for name, text in chosen_kernels().items() if not parts or any(part in name for part in parts)
    }
    return {
        f"{family}: {name}": _row(compiled)
        for family in families
        for name, compiled in compile_for(family, kernels).items()
    }


def _row(kernel: Compiled) -> dict[str, str]:
    row = {
        "registers": kernel.registers,
        "waves": kernel.waves,
        "spilled": kernel.spilled,
        "scratch": kernel.scratch_bytes,
        "LDS": kernel.workgroup_bytes,
        "instructions": kernel.instructions,
        "in the loop": kernel.loop and kernel.loop.instructions,
        "vector": kernel.loop and kernel.loop.vector,
        "packed": kernel.loop and kernel.loop.packed,
        "loads": kernel.loop and kernel.loop.loads,
        "bytes": kernel.loop and kernel.loop.bytes,
        "in flight": kernel.loop and kernel.loop.bytes_in_flight,
    }
    return {name: "?" if value is None else str(value) for name, value in row.items()}


def _differences(before: Figures, after: Figures) -> Figures:
    return {
        name: {
            column: value
            if value == before.get(name, {}).get(column)
            else f"{before.get(name, {}).get(column, '-')} -> {value}"
            for column, value in row.items()
        }
        for name, row in after.items()
        if row != before.get(name)
    }


if __name__ == "__main__":
    main()
