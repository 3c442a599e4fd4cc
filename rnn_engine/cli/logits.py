"""Write the logits and the state of a forward pass to a file for `rnn-engine logits`, to compare engines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import atomic_file
from rnn_engine.llm.progress import Report, progress_bar
from rnn_engine.loading.memory import plan_memory
from rnn_engine.loading.runner import RunnerSize, load_runner, open_merged
from rnn_engine.model import LoraChoice
from rnn_engine.types import F32, Runner, State, TokenRun, run_step
from states.files.exchange import StateFiles

_SLOT = 0


def write_logits(
    output: Path,
    tokens: Sequence[int],
    model: Path,
    device: str,
    *,
    v5_group_norm_epsilon: float | None,
    loras: Sequence[LoraChoice],
    weights: str | None,
    device_memory: int | None,
    chunk: int,
    state: Path | None,
) -> None:
    """Run `tokens` on a model, and write their logits and the state after them to the file `output`.

    They run from the state in the file `state`, or from the fill values if it is None. A step runs `chunk` tokens.
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
            np.savez(file, allow_pickle=False, logits=logits, **_read_state(runner))


def _check(tokens: Sequence[int], vocab_size: int) -> None:
    if not tokens:
        raise InvalidRequestError("--tokens", list(tokens), "at least one token id")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidRequestError("--tokens", token, f"token ids from 0 to {vocab_size - 1}")


def run_logits(runner: Runner, tokens: Sequence[int], chunk: int, report: Report, initial: State | None) -> F32:
    """Return the logits [T, V] after each token of a sequence that starts from the state `initial`.

    A step runs `chunk` tokens. `report` is called with the progress.
    """
    logits = np.empty((len(tokens), runner.shape.vocab_size), np.float32)
    runner.write_state(_SLOT, initial)
    for start in range(0, len(tokens), chunk):
        report("running the tokens", start, len(tokens))
        part = tokens[start : start + chunk]
        readout = run_step(runner, [TokenRun(_SLOT, part, rows=len(part))])
        for row in range(len(part)):
            logits[start + row] = readout.full_row(row)
    return logits


def _read_state(runner: Runner) -> dict[str, F32]:
    """Return the state of the sequence as arrays, one for each layer and field, named "state.LAYER.FIELD"."""
    return {
        f"state.{layer}.{name}": values
        for name, layers in runner.read_state(_SLOT).items()
        for layer, values in enumerate(layers)
    }
