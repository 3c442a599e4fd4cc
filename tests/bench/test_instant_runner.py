"""The read-outs of the runner that answers at once look like a model's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rnn_engine.types import Readout, TokenDraw, TokenRun
from tests.support.models import tiny_shape
from tools.bench.runners import DeviceClock, InstantRunner

VOCAB = 512
SLOTS = 3


@pytest.fixture
def readout() -> Readout:
    runner = InstantRunner(replace(tiny_shape(), vocab_size=VOCAB), SLOTS)
    return runner.collect(runner.submit([TokenRun(slot, [1], rows=1) for slot in range(SLOTS)]))


def test_candidates_are_the_greatest_of_the_whole_row(readout: Readout) -> None:
    for row in range(SLOTS):
        full = readout.full_row(row)
        order = np.argsort(-full, kind="stable")[: len(readout.ids[row])]
        assert readout.ids[row].tolist() == order.tolist()
        assert readout.logits[row].tolist() == full[order].tolist()


def test_logsumexp_is_the_whole_rows(readout: Readout) -> None:
    expected = [np.log(np.exp(readout.full_row(row).astype(np.float64)).sum()) for row in range(SLOTS)]
    assert readout.logsumexp == pytest.approx(expected, rel=1e-6)


def test_token_0_is_no_candidate(readout: Readout) -> None:
    assert not (readout.ids == 0).any()


def test_a_sequence_meets_other_rows_at_every_step() -> None:
    runner = InstantRunner(replace(tiny_shape(), vocab_size=VOCAB), SLOTS)
    seen = {runner.collect(runner.submit([TokenRun(0, [1], rows=1)])).ids.tobytes() for _ in range(128)}
    assert len(seen) == 128


def test_a_modelled_device_does_one_step_after_the_other() -> None:
    clock = DeviceClock()
    runner = InstantRunner(replace(tiny_shape(), vocab_size=VOCAB), SLOTS, step_seconds=100.0, clock=clock)
    begun = clock.now()
    draws = [TokenDraw(0, 0, 0, 1.0, 1.0, count) for count in (3, 2)]
    tickets = [runner.submit([TokenRun(0, [1], rows=1, draw=draw)]) for draw in draws]
    seconds = []
    for ticket in tickets:
        runner.collect(ticket)
        seconds.append(clock.now() - begun)
    assert seconds == pytest.approx([300.0, 500.0], abs=50.0)
