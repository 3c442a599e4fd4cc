"""`rnn-engine logits`: write the results of a forward pass to a file, to compare this engine with another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click
import numpy as np

from rnn_engine.atomic_file import atomic_file
from rnn_engine.cli.options import (
    device_memory_option,
    device_option,
    lora_option,
    model_argument,
    parse_tokens,
    v5_epsilon_option,
    weights_option,
)
from rnn_engine.cli.progress import Report, progress_bar
from rnn_engine.cli.state_options import state_option
from rnn_engine.errors import InvalidRequestError
from rnn_engine.loading.memory import plan_memory
from rnn_engine.loading.model import open_merged
from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.model import LoraChoice
from rnn_engine.types import F32, Runner, State, TokenRun, run_step
from states.files.exchange import StateFiles

_SLOT = 0


@click.command()
@model_argument
@click.option(
    "--tokens", callback=parse_tokens, required=True, metavar="1,2,3|FILE.npy", help="The ids of the tokens to run."
)
@device_option
@v5_epsilon_option
@lora_option
@weights_option
@device_memory_option
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="How many tokens a step takes; the result does not depend on it.",
)
@state_option
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file to write: OUT.npz."
)
def command(
    model: Path,
    tokens: list[int],
    device: str,
    v5_group_norm_epsilon: float | None,
    loras: tuple[LoraChoice, ...],
    weights: str | None,
    device_memory: int | None,
    chunk: int,
    state: Path | None,
    output: Path,
) -> None:
    """Write the logits of tokens, and the state after them, to a file.

    The tokens run from an empty state unless one is given. The NumPy file holds `logits` [T, V] in f32, one row a
    token, and the state after the last token: for each layer L the fields of the version's state, from RWKV-5 on
    `state.L.att_shift` [D], `state.L.wkv` [H, value, key] and `state.L.ffn_shift` [D].
    """
    size = min(chunk, len(tokens))
    with atomic_file(output) as file, progress_bar("opening the model") as report:
        with open_merged(model, loras, v5_group_norm_epsilon=v5_group_norm_epsilon) as opened:
            _check(tokens, opened.shape.vocab_size)
            initial = None if state is None else StateFiles(opened.shape, opened.fingerprint).read(state).state
            room = RunnerSize(num_slots=1, max_tokens=size, max_rows=size)
            plan = plan_memory(opened, device, room, weights=weights, device_memory=device_memory)
            runner = load_runner(
                opened, device, weights=plan.weights, num_slots=1, max_tokens=size, max_rows=size, progress=report
            )
        with closing(runner):
            logits = run_logits(runner, tokens, size, report, initial)
            np.savez(file, allow_pickle=False, logits=logits, **_state(runner))


def _check(tokens: Sequence[int], vocab_size: int) -> None:
    if not tokens:
        raise InvalidRequestError("--tokens", list(tokens), "at least one token id")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidRequestError("--tokens", token, f"token ids from 0 to {vocab_size - 1}")


def run_logits(runner: Runner, tokens: Sequence[int], chunk: int, report: Report, initial: State | None) -> F32:
    """Return the logits [T, V] after every token of a sequence that begins at `initial`, run `chunk` tokens a step."""
    logits = np.empty((len(tokens), runner.shape.vocab_size), np.float32)
    runner.write_state(_SLOT, initial)
    for start in range(0, len(tokens), chunk):
        report("running the tokens", start, len(tokens))
        part = tokens[start : start + chunk]
        readout = run_step(runner, [TokenRun(_SLOT, part, rows=len(part))])
        for row in range(len(part)):
            logits[start + row] = readout.full_row(row)
    return logits


def _state(runner: Runner) -> dict[str, F32]:
    """Return the state of the sequence as arrays by layer and field."""
    return {
        f"state.{layer}.{name}": values
        for name, layers in runner.read_state(_SLOT).items()
        for layer, values in enumerate(layers)
    }
