"""A runner against the golden files, as tests to inherit.

A subclass is named Test.... Its module has a fixture `make_runner`, of class scope or wider, that returns a
`MakeRunner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pytest

from rnn_engine.loading.runner import open_model
from rnn_engine.types import F32, Runner, TokenRun, run_step
from tests.support.golden import NAMES, load_golden
from tests.support.results_contract import MakeRunner

MAX_TOKENS = 512
WHOLE = (MAX_TOKENS,)
MIXED = (*(1,) * 8, *(7,) * 2, 64)


class GoldenContract:
    """Every golden model through one slot, in chunks of several sizes."""

    tolerance = 2e-5
    """The greatest error of a logit or a state's number, in parts of the greatest in its array."""

    @pytest.mark.parametrize("name", NAMES)
    def test_every_chunk_size_gives_the_golden_numbers(self, make_runner: MakeRunner, name: str) -> None:
        golden = load_golden(name)
        with open_model(golden.model_path) as model:
            runner = make_runner(model, num_slots=2, max_tokens=MAX_TOKENS, max_rows=MAX_TOKENS, num_candidates=8)
            for sizes in (MIXED, WHOLE):
                runner.write_state(1, None)
                self.assert_close(run_in_chunks(runner, golden.tokens.tolist(), sizes), golden.logits)
                for field, values in runner.read_state(1).items():
                    self.assert_close(values, golden.state[field])
            runner.close()

    def assert_close(self, found: F32, expected: F32) -> None:
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= self.tolerance * np.abs(expected).max()


def run_in_chunks(runner: Runner, tokens: list[int], sizes: Sequence[int]) -> F32:
    """Run tokens in slot 1 in chunks of `sizes`, again and again, and return the logits after every token: [T, V]."""
    logits: list[F32] = []
    for size in cycle(sizes):
        part = tokens[len(logits) : len(logits) + size]
        if not part:
            break
        readout = run_step(runner, [TokenRun(1, part, rows=len(part))])
        logits += [readout.full_row(row) for row in range(len(part))]
    return np.stack(logits)
