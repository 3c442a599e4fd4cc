"""Penalties and biases change logits as documented, and log-probabilities stay the model's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.errors import StepError
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.ranking import LogitRow, SequenceContext, top_logprobs
from rnn_engine.sampling.samplers import make_adjustments
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from rnn_engine.types import F32, Readout

tokens = st.lists(st.integers(0, 4), max_size=12)


@given(earlier=tokens, generated=tokens, bias=st.dictionaries(st.integers(0, 4), st.floats(-5, 5), max_size=3))
def test_the_table_holds_what_the_definition_says(
    earlier: list[int], generated: list[int], bias: dict[int, float]
) -> None:
    presence, frequency, decay = 0.5, 0.25, 0.75
    sampling = SamplingParams(
        presence_penalty=presence, frequency_penalty=frequency, penalty_decay=decay, logit_bias=bias
    )
    adjustments = make_adjustments(sampling, SequenceContext(earlier=earlier))
    penalties: dict[int, float] = {}
    for position, token in enumerate(earlier):
        distance = len(earlier) - 1 - position
        penalties[token] = penalties.get(token, presence) + frequency * decay**distance
    for token in generated:
        adjustments.generated(token)
        penalties = {other: penalty * decay for other, penalty in penalties.items()}
        penalties[token] = penalties.get(token, presence) + frequency
    expected = {token: bias.get(token, 0.0) - penalties.get(token, 0.0) for token in {*bias, *penalties}}
    known = adjustments.tokens
    assert sorted(known) == sorted(expected)
    assert list(adjustments.added(known, np.zeros(len(known)))) == pytest.approx([expected[token] for token in known])


def test_a_penalised_token_gives_way_and_comes_back_as_the_penalty_decays() -> None:
    row = LogitRow.of_full(np.array([1.0, 0.0, -5.0], np.float32), 3)
    sampler = SequenceSampler(SamplingParams(temperature=0.0, presence_penalty=1.5, penalty_decay=0.5), seed=0)
    assert [sampler.draw(row).token for _ in range(4)] == [0, 1, 0, 0]


def test_tokens_of_earlier_replies_are_penalised_from_the_first_draw_on() -> None:
    row = LogitRow.of_full(np.array([1.0, 0.0], np.float32), 2)
    sampling = SamplingParams(temperature=0.0, presence_penalty=1.5)
    assert SequenceSampler(sampling, seed=0, context=SequenceContext(earlier=[0])).draw(row).token == 1


def test_the_log_probability_is_the_models_own() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.25])).astype(np.float32)
    sampling = SamplingParams(temperature=0.0, presence_penalty=9.0, logit_bias={0: -50.0, 1: 50.0})
    drawn = SequenceSampler(sampling, seed=0, context=SequenceContext(earlier=[1])).draw(LogitRow.of_full(logits, 3))
    assert drawn.token == 1
    assert drawn.logprob == pytest.approx(np.log(0.25))


@pytest.mark.parametrize("count", [0, 2, 3, 5])
def test_alternatives_are_the_likeliest_even_beyond_the_candidates(count: int) -> None:
    probabilities = np.array([0.1, 0.4, 0.2, 0.1, 0.2])
    logits = np.log(probabilities).astype(np.float32)
    row = LogitRow.of_full(logits, 5)
    few = replace(row, ids=row.ids[:2], logits=row.logits[:2])
    expected = [1, 2, 4, 0, 3][:count]
    assert [token for token, _ in top_logprobs(few, count)] == expected
    assert [logprob for _, logprob in top_logprobs(few, count)] == pytest.approx(list(np.log(probabilities[expected])))


@pytest.mark.parametrize("logsumexp", [np.nan, np.inf, -np.inf])
def test_a_row_without_probabilities_is_refused(logsumexp: float) -> None:
    def full_row(row: int) -> F32:
        return np.full(3, logsumexp, np.float32)

    readout = Readout(
        ids=np.array([[0]], np.int32),
        logits=np.array([[logsumexp]], np.float32),
        logsumexp=np.array([logsumexp], np.float32),
        allowed_logsumexp=np.array([logsumexp], np.float32),
        target_logits=np.array([np.nan], np.float32),
        sound=np.array([False]),
        full_row=full_row,
    )
    with pytest.raises(StepError, match="log-sum-exp of"):
        LogitRow.of(readout, 0, 3)
