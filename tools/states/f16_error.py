"""Measure what storing states in f16 does to the probabilities of the tokens that follow.

    python -m tools.states.f16_error [MODEL] [--text FILE]

The text is run once; at several positions its state is stored in f16, and the text goes on from there. Reported for
each position: the greatest and the mean difference of the log-probabilities of the text's own tokens, and how many of
the likeliest tokens change. The model is the one that ships with the project unless another is named.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rnn_engine.demo import model_path
from rnn_engine.loading.runner import load_runner, open_model
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.types import F32, Runner, TokenRun, run_step
from states.frozen import Payload

TOKENS_AFTER = 64
README = Path(__file__).resolve().parents[2] / "README.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=model_path())
    parser.add_argument("--text", type=Path, default=README)
    parser.add_argument("--positions", type=int, nargs="+", default=[16, 64, 256, 512, 1024])
    options = parser.parse_args()
    with open_model(options.model) as model:
        tokenizer = load_tokenizer("auto", options.model, model.shape.vocab_size)
        runner = load_runner(model, "cpu", num_slots=2, max_rows=TOKENS_AFTER, max_tokens=TOKENS_AFTER)
    tokens = tokenizer.encode(options.text.read_text())
    print(f"{options.model.name}, {runner.shape.num_layers} layers of {runner.shape.width}; {options.text.name}")
    for position in options.positions:
        if position + TOKENS_AFTER < len(tokens):
            _report(runner, tokens, position)


def _report(runner: Runner, tokens: Sequence[int], position: int) -> None:
    runner.write_state(0, None)
    for start in range(0, position, TOKENS_AFTER):
        run_step(runner, [TokenRun(0, tokens[start : min(start + TOKENS_AFTER, position)])])
    state = runner.read_state(0)
    runner.write_state(1, Payload(state, None).stored_as("f16").expand())
    after = tokens[position : position + TOKENS_AFTER]
    exact, stored = (_log_probabilities(runner, slot, after) for slot in (0, 1))  # [TOKENS_AFTER, V]
    targets = np.asarray(tokens[position + 1 : position + 1 + TOKENS_AFTER])
    difference = np.abs(exact - stored)[np.arange(TOKENS_AFTER), targets]
    changed = int((exact.argmax(axis=1) != stored.argmax(axis=1)).sum())
    largest = max(float(np.abs(array).max()) for array in state.values())
    print(
        f"  after {position} tokens: greatest difference {difference.max():.2e}, mean {difference.mean():.2e}; "
        f"{changed} of {TOKENS_AFTER} likeliest tokens change; greatest value in the state {largest:.1f}"
    )


def _log_probabilities(runner: Runner, slot: int, tokens: Sequence[int]) -> F32:
    readout = run_step(runner, [TokenRun(slot, tokens, rows=len(tokens))])
    rows = np.stack([readout.full_row(row) for row in range(len(tokens))])
    log_probabilities: F32 = rows - readout.logsumexp[:, None]
    return log_probabilities


if __name__ == "__main__":
    main()
