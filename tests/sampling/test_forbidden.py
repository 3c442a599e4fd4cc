"""Tokens that are never drawn, or not yet, as long as another one is possible."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.ranking import LogitRow, SequenceContext
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from tests.support.logit_rows import Device, peaked

GREEDY = {"temperature": 0.0}


def drawn(sampling: SamplingParams, count: int, context: SequenceContext | None = None) -> list[int]:
    """Return the tokens drawn from a row in which each token is a little less likely than the one before it."""
    sampler = SequenceSampler(sampling, 0, context or SequenceContext())
    return [sampler.draw(Device(4).row(peaked(16))).token for _ in range(count)]


def test_a_bias_of_minus_infinity_is_never() -> None:
    assert drawn(SamplingParams(temperature=0.0, logit_bias={0: -math.inf}), 1) == [1]
    sampling = SamplingParams(temperature=100.0, top_p=1.0, top_k=0, logit_bias=dict.fromkeys(range(14), -math.inf))
    assert set(drawn(sampling, 60)) == {14, 15}


def test_what_is_never_drawn_is_drawn_where_nothing_else_is_left() -> None:
    row = LogitRow.of_full(np.array([1.0, 2.0], np.float32), 2)
    sampling = SamplingParams(logit_bias={0: -math.inf, 1: -math.inf})
    assert SequenceSampler(sampling, 0).draw(row).token in {0, 1}


@pytest.mark.parametrize("min_p", [0.0, 0.01])
def test_bad_words_are_forbidden_where_they_would_be_completed(min_p: float) -> None:
    sampling = SamplingParams(temperature=0.0, min_p=min_p, bad_words=[[0, 0, 0], [0, 0, 1], [2, 0]])
    assert drawn(sampling, 6) == [0, 0, 2, 1, 0, 0]
    assert drawn(SamplingParams(temperature=0.0, bad_words=[[0]]), 2) == [1, 1]


def test_stop_tokens_wait_for_the_least_number_of_tokens() -> None:
    context = SequenceContext(stop_tokens=(0, 1), min_tokens=2)
    assert drawn(SamplingParams(temperature=0.0), 4, context) == [2, 2, 0, 0]


def test_rows_are_read_whole_no_more_often_where_tokens_are_forbidden() -> None:
    device = Device(num_candidates=8)
    sampler = SequenceSampler(SamplingParams(bad_words=[[0], [900, 2]], logit_bias={1: -math.inf}), 3)
    for _ in range(40):
        assert sampler.draw(device.row(peaked())).token not in {0, 1}
    assert device.rows_read == 0
