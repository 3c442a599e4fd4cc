"""`python -m tools.bench.against_peer PYTHON`: our 0.1B shape beside web-rwkv's, in turns on the same machine.

PYTHON is an interpreter that has web-rwkv-py, numpy and safetensors. Each round runs the peer and then us, both in
a new process, so that a machine that gets slower or faster meanwhile does so for both; the ratios are of one round.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click


@click.command()
@click.argument("python", type=click.Path(exists=True, dir_okay=False))
@click.option("--rounds", default=3, show_default=True)
@click.option("--length", default=64, show_default=True, help="Tokens at prefill.")
def main(python: str, rounds: int, length: int) -> None:
    """Print tokens per second of both and the ratios, a line a round and then the medians."""
    ratios: dict[str, list[float]] = {"decode": [], "prefill": []}
    for number in range(1, rounds + 1):
        peer, ours = _peer(python, length), _ours(length)
        for phase, found in ratios.items():
            found.append(ours[phase] / peer[phase])
            click.echo(f"round {number} {phase}: {ours[phase]:.1f} / {peer[phase]:.1f} tok/s = {found[-1]:.2f}")
    for phase, found in ratios.items():
        click.echo(f"{phase}: {statistics.median(found):.2f} times the peer, median of {rounds} rounds")


def _peer(python: str, length: int) -> dict[str, float]:
    script = Path(__file__).with_name("peer_web_rwkv.py")
    command = [python, str(script), "--length", str(length)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def _ours(length: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "tools.bench", "--slots", "1", "--lengths", str(length), "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True)
        (figures,) = json.loads(out.read_text("utf-8"))
    return {line["phase"]: line["tokens_per_second"] for line in figures["results"]}


if __name__ == "__main__":
    main()
