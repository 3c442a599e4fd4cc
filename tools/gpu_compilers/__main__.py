"""`python -m tools.gpu_compilers`: print what the compilers of GPUs make of the kernels, without such a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import click

from tools.gpu_compilers import FAMILIES, UNPACKED, Compiled, UnavailableError, chosen_kernels, compile_for
from tools.markdown import table

_HEAD = (
    *("kernel", "registers", "waves", "spilled", "scratch", "LDS", "instructions"),
    *("in the loop", "loads", "bytes", "in flight", "vector", "LDS loads"),
)


@click.command()
@click.option("--family", "families", multiple=True, type=click.Choice([*FAMILIES, *UNPACKED]))
@click.option("--trusted", is_flag=True, help="Compile without checks of bounds.")
@click.option("--kernel", "parts", multiple=True, help="Only kernels whose name contains one of these.")
def main(families: Sequence[str], parts: Sequence[str], trusted: bool) -> None:
    """Print registers, waves, spills, and the loads of the innermost loop of each kernel.

    By default for all families of AMD and Intel. The others need MESA_FOLDER, a folder that mesa.sh has made.
    """
    rows = []
    try:
        for family in families or FAMILIES:
            chosen = chosen_kernels(family).items()
            kernels = {name: text for name, text in chosen if any(part in name for part in parts or [""])}
            rows += [
                (f"{family}: {name}", *_cells(each))
                for name, each in compile_for(family, kernels, trusted=trusted).items()
            ]
    except UnavailableError as error:
        raise click.ClickException(str(error)) from None
    click.echo(table(_HEAD, rows))


def _cells(kernel: Compiled) -> list[str]:
    *figures, loop = astuple(kernel)
    return [str(figure) for figure in (*figures, *(loop or "??????"))]  # not every family's machine code is shown


if __name__ == "__main__":
    main()
