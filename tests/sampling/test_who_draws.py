"""The host and the device draw the same tokens, and the device draws for the parameters that it supports."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.ranking import LogitRow, SequenceContext
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from rnn_engine.types import MOST_DRAW_BIASES, mask_words
from tests.support.draw_kernels import DrawKernels
from tests.support.logit_rows import chains, make_row, params

VOCAB = 257
KERNELS = DrawKernels(VOCAB, 16)
EARLIER = (3, 7, 7, 11)


def make_sampler(sampling: SamplingParams, seed: int) -> SequenceSampler:
    context = SequenceContext(earlier=EARLIER, vocab_size=VOCAB, prompt=EARLIER, stop_tokens=(0,), min_tokens=0)
    return SequenceSampler(sampling, seed, context)


@settings(max_examples=100, deadline=None)
@given(sampling=st.lists(params(VOCAB) | chains(VOCAB), min_size=4, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_both_draw_the_same_token(sampling: list[SamplingParams], seed: int) -> None:
    sampling = [*sampling, SamplingParams()]  # a device is not asked for no draws
    rows = np.stack([make_row(seed + number, VOCAB) for number in range(len(sampling))])
    rows = np.where(np.isfinite(rows), rows, np.float32(-60.0))
    expected = [
        make_sampler(one, seed).draw(LogitRow.of_full(row, VOCAB)).token
        for one, row in zip(sampling, rows, strict=True)
    ]
    samplers = [make_sampler(one, seed) for one in sampling]
    no_halts = np.zeros(mask_words(VOCAB), np.uint32)
    asked = [one.device_draw(1, no_halts) if one.draws_on_device(has_penalties=True) else None for one in samplers]
    _, drawn = KERNELS.run(rows, asked)
    for one, token in zip(drawn, expected, strict=True):
        assert list(one.tokens) in ([], [token])


CASES = {  # parameters, drawn on the device?
    "greedy": (SamplingParams(temperature=0.0), True),
    "nucleus": (SamplingParams(), True),
    "very cold": (SamplingParams(temperature=1e-9), False),
    "penalties": (SamplingParams(presence_penalty=0.5, frequency_penalty=0.5), True),
    "negative penalties": (SamplingParams(presence_penalty=-0.5), False),
    "no decay left": (SamplingParams(frequency_penalty=0.5, penalty_decay=0.0), False),
    "repeat_penalty": (SamplingParams(repeat_penalty=1.2), True),
    "repeat_penalty below 1": (SamplingParams(repeat_penalty=0.8), False),
    "repeat_penalty over no tokens": (SamplingParams(repeat_penalty=0.8, repeat_last_n=0), True),
    "a bias": (SamplingParams(logit_bias={5: 1.0}), True),
    "many biases": (SamplingParams(logit_bias=dict.fromkeys(range(MOST_DRAW_BIASES + 1), 1.0)), False),
    "min_p": (SamplingParams(min_p=0.1), True),
    "samplers in another order": (SamplingParams(top_k=9, min_p=0.1, samplers=("min_p", "top_k")), False),
    "typical_p": (SamplingParams(typical_p=0.5), False),
    "mirostat": (SamplingParams(mirostat=2), False),
    "DRY": (SamplingParams(dry_multiplier=0.8), False),
    "bad words": (SamplingParams(bad_words=[[1, 2]]), False),
}


@pytest.mark.parametrize("name", CASES)
def test_who_can_draw(name: str) -> None:
    sampling, on_device = CASES[name]
    assert make_sampler(sampling, 1).draws_on_device(has_penalties=True) == on_device


def test_a_device_without_penalties_draws_for_those_that_have_none() -> None:
    assert make_sampler(SamplingParams(), 1).draws_on_device(has_penalties=False)
    assert not make_sampler(SamplingParams(presence_penalty=0.5), 1).draws_on_device(has_penalties=False)
