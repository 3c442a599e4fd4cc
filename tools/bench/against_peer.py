"""`python -m tools.bench.against_peer PYTHON`: our 0.1B shape beside web-rwkv's, in turns on the same machine.

PYTHON is an interpreter that has web-rwkv-py, numpy and safetensors.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import click

from tools.bench.turns import Figures, Side, compare, measure_forward, rounds_option


@click.command()
@click.argument("python", type=click.Path(exists=True, dir_okay=False))
@rounds_option
@click.option("--length", default=64, show_default=True, help="Tokens at prefill.")
def main(python: str, rounds: int, length: int) -> None:
    """Print tokens per second of both and the ratios."""
    compare(
        Side("web-rwkv", lambda: _measure_peer(python, length)),
        Side("rnn-engine", lambda: _measure_own(length)),
        rounds,
    )


def _measure_peer(python: str, length: int) -> Figures:
    script = Path(__file__).with_name("peer_web_rwkv.py")
    command = [python, str(script), "--length", str(length)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def _measure_own(length: int) -> Figures:
    decode, prefill = measure_forward(["--slots", "1", "--lengths", str(length)]).values()
    return {"decode": decode, "prefill": prefill}


if __name__ == "__main__":
    main()
