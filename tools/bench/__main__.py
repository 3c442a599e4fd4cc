"""`python -m tools.bench`: run `rnn-engine bench` on a random model that has the shape of a published one.

All options that are not listed go to `rnn-engine bench`, such as --slots, --lengths, --device, --weights and --profile.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tools.bench.peers import SHAPES, write_random_model
from tools.bench.turns import json_option, print_figures


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--shape", type=click.Choice(list(SHAPES)), default="0.1B", show_default=True, help="The model's shape.")
@json_option
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(shape: str, as_json: bool, options: Sequence[str]) -> None:
    """Measure the forward pass of a random model. OPTIONS are those of `rnn-engine bench`.

    Matrices are multiplied by the fixed kernels, unless --tune asks for a search.
    """
    with TemporaryDirectory() as folder:
        file = write_random_model(SHAPES[shape], Path(folder) / f"{shape}.safetensors")
        command = [sys.executable, "-m", "rnn_engine.cli", "bench", str(file), "--tune", "0", *options]
        if not as_json:
            sys.exit(subprocess.run(command).returncode)
        done = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE, text=True)
    lines = json.loads(done.stdout)["results"]
    named = {f"{each['phase']}, {each['slots']} slots, {each['tokens']} tokens, tok/s": each for each in lines}
    print_figures({name: each["tokens_per_second"] for name, each in named.items()}, as_json)


if __name__ == "__main__":
    main()
