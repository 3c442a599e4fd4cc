"""`python -m tools.bench.peers`: compare this engine's speed with other engines', in alternating runs on one machine.

Each peer is a module of this package. `--python NAME=PATH` adds a peer, with a Python that has the peer installed; the
module says how to make that environment. All run random weights of one shape and seed: RWKV-6 and RWKV-7 of 12 layers
and width 768 with the World vocabulary. `rnn_engine.convert` writes them in each peer's format. A turn is a process of
its own, which loads the model, warms up, and takes medians. Peers return whole rows of logits, this engine only the
candidates that its samplers need.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
import numpy as np

from rnn_engine.convert.convert import convert_model
from rnn_engine.loading.runner import open_model
from rnn_engine.types import ModelShape
from rnn_engine.versions.v6.layout import ShapeV6
from tests.support.models import random_model, save_safetensors
from tools.bench.random_model import HEAD_SIZE, SHAPES, VOCAB_SIZE
from tools.bench.turns import HERE, Figures, Side, comma_separated, rounds_option, show, show_ratios, take_turns

_V7 = SHAPES["0.1B"]
_SHAPES: Final[Mapping[str, ModelShape]] = {
    "v6": ShapeV6(
        num_layers=_V7.num_layers,
        width=_V7.width,
        num_heads=_V7.num_heads,
        head_size=HEAD_SIZE,
        ffn_width=2688,  # 3.5 times the width, as published models have it
        vocab_size=VOCAB_SIZE,
        mix_rank=32,
        decay_rank=64,
    ),
    "v7": _V7,
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """How to run one engine of the comparison: its Python, its module, its model file's suffix, and its setting."""

    python: str  # empty until the command line says it
    module: str  # of this package
    suffix: str  # of the file that it reads
    setting: str
    versions: Sequence[str] = tuple(_SHAPES)


_PEERS: Final[Mapping[str, _Kind]] = {
    "web-rwkv": _Kind("", "web_rwkv", ".st", "", ("v6",)),
    "llama.cpp": _Kind("", "llama_cpp", ".gguf", ""),
    "llama.cpp-vulkan": _Kind("", "llama_cpp", ".gguf", "0"),
    "rwkv": _Kind("", "rwkv_package", ".pth", "cpu fp32"),
}


def _pairs(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, Path]:
    pairs = {name: Path(path) for name, _, path in (value.partition("=") for value in values)}
    for name, path in pairs.items():
        if name not in _PEERS or not path.is_file():
            raise click.BadParameter(
                f"{name}={path}; expected NAME=PATH, where NAME is one of {', '.join(_PEERS)} and PATH is a file"
            )
    return pairs


_words = comma_separated(str)


@click.command()
@click.option("--python", "pythons", multiple=True, callback=_pairs, metavar="NAME=PATH", help="A peer and its Python.")
@click.option(
    "--devices",
    default="auto,cpu",
    callback=_words,
    show_default=True,
    help="Devices of this engine, separated by commas.",
)
@click.option("--versions", default=",".join(_SHAPES), callback=_words, show_default=True)
@click.option("--slots", default="1,8", callback=_words, show_default=True, help="Sequences at decode.")
@click.option("--lengths", default="64,256", callback=_words, show_default=True, help="Tokens at prefill.")
@click.option("--repeats", default=5, show_default=True, help="Timed runs of each figure in one turn.")
@rounds_option
def main(
    pythons: Mapping[str, Path],
    devices: list[str],
    versions: list[str],
    slots: list[str],
    lengths: list[str],
    repeats: int,
    rounds: int,
) -> None:
    """Print tokens per second of all sides, and the ratios of this engine's to the peers'."""
    sizes = ["--repeats", str(repeats), "--slots", *slots, "--lengths", *lengths]
    columns = [f"rnn-engine on {device} | times" for device in devices]
    click.echo(f"| version | tokens/s at | peer | its | {' | '.join(columns)} |")
    click.echo("|---" * (4 + 2 * len(devices)) + "|")
    for version in versions:
        kinds = {device: _Kind(sys.executable, "rnn_engine", ".safetensors", device) for device in devices}
        kinds |= {name: replace(_PEERS[name], python=str(path)) for name, path in pythons.items()}
        kinds = {name: kind for name, kind in kinds.items() if version in kind.versions}
        arguments = ["--version", version, *sizes]
        with tempfile.TemporaryDirectory() as temporary:
            _write_files(version, kinds.values(), Path(temporary))
            turns = [_Turn(name, kind, Path(temporary), arguments) for name, kind in kinds.items()]
            figures = take_turns([turn.side for turn in turns], rounds)
        runs = [Runs(turn.side.name, each, turn.choices) for turn, each in zip(turns, figures, strict=True)]
        show_comparison(version, runs[: len(devices)], runs[len(devices) :])


class _Turn:
    """One side of the comparison. `choices` maps each prompt of its last run to the likeliest token after it."""

    def __init__(self, name: str, kind: _Kind, folder: Path, arguments: Sequence[str]) -> None:
        self.side = Side(name, self._measure)
        self.choices: Mapping[str, int] = {}
        module = f"tools.bench.peers.{kind.module}"
        self._command = [kind.python, "-m", module, str(folder / f"model{kind.suffix}")]
        self._command += ["--setting", kind.setting, *arguments]

    def _measure(self) -> Figures:
        # Without this, threads that spin while they wait for others would count as working.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run(self._command, cwd=HERE, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        self.choices = found["choices"]
        figures: Figures = found["figures"]
        return figures


def _write_files(version: str, kinds: Iterable[_Kind], folder: Path) -> None:
    """Write a random model to `folder` in every file format that one of `kinds` reads."""
    source = save_safetensors(random_model(_SHAPES[version], seed=1, dtype=np.float16), folder / "model.safetensors")
    with open_model(source) as model:
        for suffix in {kind.suffix for kind in kinds} - {source.suffix}:
            convert_model(model, folder / f"model{suffix}", "f16")


@dataclass(frozen=True, slots=True)
class Runs:
    """The results of one engine in all rounds of the comparison."""

    name: str
    figures: Mapping[str, Sequence[float]]  # tokens per second of each round
    choices: Mapping[str, int]  # the prompt's name -> the likeliest token after it


def show_comparison(version: str, own: Sequence[Runs], peers: Sequence[Runs]) -> None:
    """Print a row for each figure of each peer, with this engine's figures and ratios.

    List on stderr every engine whose likeliest tokens differ from those of the first of `own`.
    """
    for peer in peers:
        for name, values in peer.figures.items():
            cells = [version, name, peer.name, show(statistics.median(values))]
            for each in own:
                cells += [show(statistics.median(each.figures[name])), show_ratios(values, each.figures[name])]
            click.echo(f"| {' | '.join(cells)} |")
    for runs in (*own[1:], *peers):
        if other := [prompt for prompt, token in runs.choices.items() if token != own[0].choices[prompt]]:
            click.echo(f"{version}: {runs.name} finds another token likeliest {', '.join(other)}", err=True)


if __name__ == "__main__":
    main()
