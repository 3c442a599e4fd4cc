"""With a mask, tokens are drawn as from the row without all others, even if only few candidates are read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.errors import StepError
from rnn_engine.sampling.masks import allowed_tokens, are_allowed, count_allowed
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.ranking import LogitRow, top_logprobs
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from rnn_engine.types import F32, I32
from tests.support.logit_rows import LOGSUMEXP_ERROR, Device, cases, peaked
from tests.support.token_masks import pack_mask


def ids(*tokens: int) -> I32:
    return np.array(tokens, np.int32)


@given(vocab_size=st.integers(1, 100), data=st.data())
def test_bits_are_the_tokens_that_are_allowed(vocab_size: int, data: st.DataObject) -> None:
    allowed = sorted(data.draw(st.sets(st.integers(0, vocab_size - 1))))
    mask = pack_mask(ids(*allowed), vocab_size)
    assert mask.dtype == np.uint32
    assert len(mask) == -(-vocab_size // 32)
    assert [token for token in range(vocab_size) if int(mask[token // 32]) >> token % 32 & 1] == allowed
    if vocab_size % 32:
        mask[-1] |= np.uint32(2**32 - 2 ** (vocab_size % 32))  # bits beyond the vocabulary have no meaning
    assert list(allowed_tokens(mask, vocab_size)) == allowed
    assert count_allowed(mask, vocab_size) == len(allowed)
    assert list(np.flatnonzero(are_allowed(mask, np.arange(vocab_size, dtype=np.int32)))) == allowed


@settings(max_examples=200, deadline=None)
@given(
    case=cases(),
    num_candidates=st.integers(1, 24),
    error=st.floats(-LOGSUMEXP_ERROR, LOGSUMEXP_ERROR),
    masks=st.integers(0, 2**32),
)
def test_drawn_tokens_are_those_of_the_row_without_the_others(
    case: tuple[list[F32], SamplingParams, int], num_candidates: int, error: float, masks: int
) -> None:
    row_list, sampling, seed = case
    vocab_size = len(row_list[0])
    device, whole = Device(num_candidates, error), Device(vocab_size)
    masked, plain = SequenceSampler(sampling, seed), SequenceSampler(sampling, seed)
    generator = np.random.default_rng(masks)
    for logits in row_list:
        allowed = generator.random(vocab_size) < generator.random()
        allowed[generator.choice(np.flatnonzero(np.isfinite(logits)))] = True
        drawn = masked.draw(device.row(logits, pack_mask(np.flatnonzero(allowed).astype(np.int32), vocab_size)))
        expected = plain.draw(whole.row(np.where(allowed, logits, np.float32(-np.inf))))
        assert drawn.token == expected.token
        assert allowed[drawn.token]
        logprob = float(logits[drawn.token]) - np.logaddexp.reduce(logits.astype(np.float64))
        assert drawn.logprob == pytest.approx(logprob, abs=2 * LOGSUMEXP_ERROR)  # under the model, not under the mask


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(),
        SamplingParams(top_k=0, top_p=0.9, presence_penalty=0.2),
        SamplingParams(logit_bias={1: 50.0}),  # is not allowed
    ],
)
def test_no_whole_row_is_read_where_the_allowed_candidates_settle_the_draw(sampling: SamplingParams) -> None:
    device = Device(num_candidates=16)
    sampler = SequenceSampler(sampling, seed=7)
    mask = pack_mask(np.arange(0, 1000, 2, dtype=np.int32), 1000)
    drawn = [sampler.draw(device.row(peaked(), mask)).token for _ in range(50)]
    assert device.rows_read == 0
    assert all(token % 2 == 0 for token in drawn)


def test_fewer_allowed_tokens_than_candidates_are_all_there_is() -> None:
    device = Device(num_candidates=16)
    sampler = SequenceSampler(SamplingParams(top_p=1.0, top_k=0, temperature=100.0), seed=1)
    row = device.row(peaked(), pack_mask(ids(3, 700), 1000))
    assert {sampler.draw(row).token for _ in range(200)} == {3, 700}
    assert device.rows_read == 0


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_alternatives_are_allowed_tokens_with_their_probability_in_the_whole_row(count: int) -> None:
    probabilities = np.array([0.1, 0.4, 0.2, 0.05, 0.25])
    logits = np.log(probabilities).astype(np.float32)
    expected = [4, 2, 0][:count]
    for num_candidates in (1, 3):
        top = top_logprobs(Device(num_candidates).row(logits, pack_mask(ids(0, 2, 4), 5)), count)
        assert [token for token, _ in top] == expected
        assert [logprob for _, logprob in top] == pytest.approx(list(np.log(probabilities[expected])))


def test_a_mask_that_allows_nothing_is_refused() -> None:
    with pytest.raises(StepError, match="allows no token"):
        LogitRow.of_full(peaked(), 4, pack_mask(ids(), 1000))
