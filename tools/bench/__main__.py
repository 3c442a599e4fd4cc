"""`python -m tools.bench`: run `rnn-engine bench` on a random model that has the shape of a published one.

All options that are not listed go to `rnn-engine bench`, such as --slots, --lengths, --device, --weights and --profile.
With --against, the command of another working tree and the one of this tree run in turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tools.bench.peers import SHAPES, write_random_model
from tools.bench.turns import Figures, against_option, compare_trees, rounds_option, run_module


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--shape", type=click.Choice(list(SHAPES)), default="0.1B", show_default=True, help="The model's shape.")
@against_option
@rounds_option
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(shape: str, other: Path | None, rounds: int, options: Sequence[str]) -> None:
    """Measure the forward pass of a random model. OPTIONS are those of `rnn-engine bench`.

    Matrices are multiplied by the fixed kernels, unless --tune asks for a search.
    """
    with TemporaryDirectory() as folder:
        file = write_random_model(SHAPES[shape], Path(folder) / f"{shape}.safetensors")
        arguments = ["bench", str(file), "--tune", "0", *options]
        if other is None:
            sys.exit(subprocess.run([sys.executable, "-m", "rnn_engine.cli", *arguments]).returncode)
        compare_trees(other, partial(_measure_tree, arguments), rounds)


def _measure_tree(arguments: Sequence[str], tree: Path) -> Figures:
    lines = json.loads(run_module("rnn_engine.cli", [*arguments, "--json"], tree))["results"]
    return {
        f"{line['phase']}, {line['slots']} slots, {line['tokens']} tokens, tok/s": line["tokens_per_second"]
        for line in lines
    }


if __name__ == "__main__":
    main()
