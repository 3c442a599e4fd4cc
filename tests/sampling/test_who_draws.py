"""The host one by one, the host for a whole step and the device draw the same tokens, each as the table says it can."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.sampling import together
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.rows import LogitRow, RunRows, SequenceContext
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from rnn_engine.sampling.together import JointDraws
from rnn_engine.types import MOST_DRAW_BIASES, mask_words
from tests.support.draw_kernels import DrawKernels
from tests.support.logit_rows import chains, make_row, params

VOCAB = 257
KERNELS = DrawKernels(VOCAB, 16)
EARLIER = (3, 7, 7, 11)


@pytest.fixture(autouse=True)
def few_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "FEWEST", 1)


def make_sampler(sampling: SamplingParams, seed: int) -> SequenceSampler:
    context = SequenceContext(earlier=EARLIER, vocab_size=VOCAB, prompt=EARLIER, stop_tokens=(0,), min_tokens=0)
    return SequenceSampler(sampling, seed, context)


@settings(max_examples=100, deadline=None)
@given(
    sampling=st.lists(params(VOCAB) | chains(VOCAB), min_size=4, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_three_draw_the_same_token(sampling: list[SamplingParams], seed: int) -> None:
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
    readout, drawn = KERNELS.run(rows, asked)
    for one, token in zip(drawn, expected, strict=True):
        assert list(one.tokens) in ([], [token])
    joint, samplers = JointDraws(VOCAB, len(rows)), [make_sampler(one, seed) for one in sampling]
    for slot, sampler in enumerate(samplers):
        joint.join(slot, sampler)
    run_rows = [RunRows(readout, row, 1, VOCAB) for row in range(len(rows))]
    for n, draw in enumerate(joint.draw(samplers, run_rows)):
        assert draw is None or draw.token == expected[n]


CASES = {  # parameters, drawn together?, drawn on the device?
    "greedy": (SamplingParams(temperature=0.0), True, True),
    "nucleus": (SamplingParams(), True, True),
    "very cold": (SamplingParams(temperature=1e-9), True, False),
    "penalties": (SamplingParams(presence_penalty=0.5, frequency_penalty=0.5), True, True),
    "negative penalties": (SamplingParams(presence_penalty=-0.5), False, False),
    "no decay left": (SamplingParams(frequency_penalty=0.5, penalty_decay=0.0), True, False),
    "repeat_penalty": (SamplingParams(repeat_penalty=1.2), False, True),
    "repeat_penalty below 1": (SamplingParams(repeat_penalty=0.8), False, False),
    "repeat_penalty over no tokens": (SamplingParams(repeat_penalty=0.8, repeat_last_n=0), True, True),
    "a bias": (SamplingParams(logit_bias={5: 1.0}), False, True),
    "many biases": (SamplingParams(logit_bias=dict.fromkeys(range(MOST_DRAW_BIASES + 1), 1.0)), False, False),
    "min_p": (SamplingParams(min_p=0.1), False, True),
    "samplers in another order": (SamplingParams(top_k=9, min_p=0.1, samplers=("min_p", "top_k")), False, False),
    "typical_p": (SamplingParams(typical_p=0.5), False, False),
    "mirostat": (SamplingParams(mirostat=2), False, False),
    "DRY": (SamplingParams(dry_multiplier=0.8), False, False),
    "bad words": (SamplingParams(bad_words=[[1, 2]]), False, False),
}


@pytest.mark.parametrize("name", CASES)
def test_who_can_draw(name: str) -> None:
    sampling, together_too, device_too = CASES[name]
    sampler = make_sampler(sampling, 1)
    assert (sampler.nucleus is not None) == together_too
    assert sampler.draws_on_device(has_penalties=True) == device_too


def test_a_device_without_penalties_draws_for_those_that_have_none() -> None:
    assert make_sampler(SamplingParams(), 1).draws_on_device(has_penalties=False)
    assert not make_sampler(SamplingParams(presence_penalty=0.5), 1).draws_on_device(has_penalties=False)
