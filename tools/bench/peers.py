"""`python -m tools.bench.peers`: compare this engine's speed with other engines', in turns on one machine.

`--python NAME PATH` adds a peer, with a Python that has the peer installed; `tools.bench.peer` says how to make that
environment. All run random weights of one shape and seed, with the World vocabulary, which `rnn_engine.convert` writes
in each peer's format. A turn is a process of its own, which loads the model, warms up, and takes medians. Peers return
whole rows of logits, this engine only the candidates that its samplers need; llama.cpp, asked through its server, draws
a token.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import click
import numpy as np

from rnn_engine.convert.convert import convert_model
from rnn_engine.loading.runner import open_model
from rnn_engine.types import ModelShape
from rnn_engine.versions.qwen2 import ShapeV6Qwen2, ShapeV7Qwen2
from rnn_engine.versions.v6.layout import ShapeV6
from rnn_engine.versions.v7.layout import AdapterRanks
from tests.support.models import random_model, save_safetensors, tiny_shape
from tools.bench.peer import VOCAB_SIZE, Task
from tools.bench.turns import HERE, Figures, Runs, comma_separated, print_table, rounds_option, take_turns


def _shape_v6(num_layers: int, width: int) -> ShapeV6:
    return ShapeV6(
        num_layers=num_layers,
        width=width,
        num_heads=width // 64,
        head_size=64,
        ffn_width=width * 7 // 2,  # as published models have it
        vocab_size=VOCAB_SIZE,
        mix_rank=32,
        decay_rank=64,
    )


_QWEN2_VOCABULARY: Final = 152_064


def _shape_qrwkv6(num_layers: int, width: int, num_kv_heads: int, ffn_width: int) -> ShapeV6Qwen2:
    return ShapeV6Qwen2(
        num_layers=num_layers,
        width=width,
        num_heads=width // 128,
        num_kv_heads=num_kv_heads,
        head_size=128,
        ffn_width=ffn_width,
        vocab_size=_QWEN2_VOCABULARY,
        mix_rank=64,
        decay_rank=128,
    )


SHAPES: Final[Mapping[str, ModelShape]] = {  # of published models
    "0.1B": tiny_shape(12, 768, 64, vocab=VOCAB_SIZE, ranks=AdapterRanks(w=64, a=64, v=32, g=128)),
    "0.4B": tiny_shape(24, 1024, 64, vocab=VOCAB_SIZE, ranks=AdapterRanks(w=64, a=64, v=32, g=128)),
    "1.5B": tiny_shape(24, 2048, 64, vocab=VOCAB_SIZE, ranks=AdapterRanks(w=96, a=96, v=64, g=256)),
    "2.9B": tiny_shape(32, 2560, 64, vocab=VOCAB_SIZE, ranks=AdapterRanks(w=96, a=96, v=64, g=320)),
    "7.2B": tiny_shape(32, 4096, 64, vocab=VOCAB_SIZE, ranks=AdapterRanks(w=128, a=128, v=96, g=480)),
    "v6": _shape_v6(12, 768),
    "v6-1.6B": _shape_v6(24, 2048),
    "QRWKV6-7B": _shape_qrwkv6(28, 3584, 4, 18_944),
    "QRWKV6-32B": _shape_qrwkv6(64, 5120, 8, 27_648),
    "QRWKV6-72B": _shape_qrwkv6(80, 8192, 8, 29_568),
    "ARWKV-7B": ShapeV7Qwen2(
        num_layers=28,
        width=3584,
        num_heads=56,
        head_size=64,
        ffn_width=18_944,
        vocab_size=_QWEN2_VOCABULARY,
        ranks=AdapterRanks(w=96, a=96, v=64, g=0),
    ),
}
_SUFFIXES: Final = {"web-rwkv": ".st", "llama.cpp": ".gguf", "rwkv": ".pth"}
_SETTINGS: Final = {"rwkv": "cpu fp32"}
_NOT_V7: Final = {"web-rwkv"}
Choices: TypeAlias = dict[str, int]
"""The likeliest token after the prompt, by the names of the engines."""

_words = comma_separated(str)


@click.command()
@click.option(
    "--python",
    "pythons",
    multiple=True,
    type=(click.Choice(list(_SUFFIXES)), click.Path(exists=True)),
    metavar="NAME PATH",
    help=f"A peer, one of {', '.join(_SUFFIXES)}, and its Python.",
)
@click.option("--devices", default="auto,cpu", callback=_words, show_default=True, help="Devices of this engine.")
@click.option("--shapes", default="v6,0.1B", callback=_words, show_default=True, help="v6, or sizes of RWKV-7.")
@click.option("--formats", default="f16", callback=_words, show_default=True, help="Weights; those of GGUF for v7.")
@rounds_option
def main(
    pythons: Sequence[tuple[str, str]], devices: list[str], shapes: list[str], formats: list[str], rounds: int
) -> None:
    """Print tokens per second of all sides, and the ratios of this engine's to the peers'."""
    for shape, weights in itertools.product(shapes, formats):
        version = SHAPES[shape].version
        peers = {name: python for name, python in pythons if version != "v7" or name not in _NOT_V7}
        with TemporaryDirectory() as folder:
            own = ".safetensors" if weights == "f16" else ".gguf"
            suffixes = {own, *(_SUFFIXES[name] for name in peers)}
            files = _write_files(SHAPES[shape], suffixes, weights, Path(folder) / "model.safetensors")
            tasks = {
                f"rnn-engine on {device}": (sys.executable, Task("rnn-engine", files[own], version, device))
                for device in devices
            }
            for name, python in peers.items():
                tasks[name] = python, Task(name, files[_SUFFIXES[name]], version, _SETTINGS.get(name, ""))
            choices: Choices = {}
            sides = {name: partial(_measure, name, *task, choices) for name, task in tasks.items()}
            show_comparison(f"{shape}, {weights}", take_turns(sides, rounds), list(peers), choices)


def _measure(name: str, python: str, task: Task, choices: Choices) -> Figures:
    """Run a turn, and add its engine's choice to `choices`."""
    # Without this, threads that spin while they wait for others would count as working.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    command, plan = [python, "-m", "tools.bench.peer"], json.dumps(asdict(task))
    done = subprocess.run(command, cwd=HERE, env=environment, check=True, input=plan, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    choices[name] = found["choice"]
    figures: Figures = found["figures"]
    return figures


def write_random_model(shape: ModelShape, path: Path) -> Path:
    """Write a model with random weights in f16 to a safetensors file, and return its path."""
    return save_safetensors(random_model(shape, seed=1, dtype=np.float16), path)


def _write_files(shape: ModelShape, suffixes: set[str], weights: str, source: Path) -> dict[str, str]:
    """Write a random model as `source`, and with `weights` in formats with these suffixes. Return files by suffix."""
    write_random_model(shape, source)
    with open_model(source) as model:
        for suffix in suffixes - {source.suffix}:
            convert_model(model, source.with_suffix(suffix), weights)
    return {suffix: str(source.with_suffix(suffix)) for suffix in suffixes}


def show_comparison(title: str, results: Mapping[str, Runs], peers: Sequence[str], choices: Choices) -> None:
    """Print a table for each peer, with this engine's figures and their ratios to the peer's.

    List on stderr every engine whose likeliest token differs from that of the first one.
    """
    own = {name: runs for name, runs in results.items() if name not in peers}
    for table in [{peer: results[peer], **own} for peer in peers] or [own]:
        click.echo(f"\n{title}, tokens/s:")
        print_table(table)
    first, *others = choices.items()
    for name, token in others:
        if token != first[1]:
            click.echo(f"{title}: {name} finds another token likeliest than {first[0]}", err=True)


if __name__ == "__main__":
    main()
