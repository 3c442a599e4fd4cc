"""A draw depends on the row, the parameters and the seed, not on how many candidates the runner returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rnn_engine.sampling import sequence_sampler
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.sequence_sampler import SequenceSampler, uniforms_from
from rnn_engine.types import F32
from tests.support.logit_rows import LOGSUMEXP_ERROR, Device, cases, peaked

FLAT = np.zeros(4, np.float32)
RULED_OUT = np.array([0.0, 0.0, -np.inf, -np.inf, -np.inf], np.float32)
STEEP = np.array([4.0, 1.0, 1.0, 1.0], np.float32)


@settings(max_examples=150, deadline=None)
@given(case=cases(), num_candidates=st.integers(1, 24), error=st.floats(-LOGSUMEXP_ERROR, LOGSUMEXP_ERROR))
@example(case=([FLAT] * 8, SamplingParams(top_p=0.3, presence_penalty=1.0), 1), num_candidates=2, error=0.0)
@example(case=([FLAT] * 8, SamplingParams(top_p=0.9, logit_bias={3: 1e-9}), 1), num_candidates=2, error=0.0)
@example(case=([FLAT] * 8, SamplingParams(top_p=0.3, logit_bias={2: -50.0, 3: -50.0}), 1), num_candidates=2, error=0.0)
@example(case=([RULED_OUT], SamplingParams(logit_bias={0: -1000.0, 1: -1000.0}), 1), num_candidates=3, error=0.0)
@example(
    case=([STEEP] * 8, SamplingParams(temperature=5e-324, top_p=1.0, presence_penalty=0.3), 1),
    num_candidates=2,
    error=0.0,
)
@example(case=([STEEP] * 8, SamplingParams(top_p=0.6, logit_bias={2: 2.9}), 1), num_candidates=2, error=0.0)
def test_few_candidates_and_whole_rows_lead_to_the_same_tokens(
    case: tuple[list[F32], SamplingParams, int], num_candidates: int, error: float
) -> None:
    row_list, sampling, seed = case
    few, whole = Device(num_candidates, error), Device(len(row_list[0]))
    by_few, by_whole = SequenceSampler(sampling, seed), SequenceSampler(sampling, seed)
    drawn = [by_few.draw(few.row(row)) for row in row_list]
    expected = [by_whole.draw(whole.row(row)) for row in row_list]
    assert [one.token for one in drawn] == [one.token for one in expected]
    assert [one.logprob for one in drawn] == pytest.approx([one.logprob for one in expected], abs=2 * LOGSUMEXP_ERROR)
    assert whole.rows_read == 0


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_rows_that_are_sorted_in_part_lead_to_the_same_tokens(case: tuple[list[F32], SamplingParams, int]) -> None:
    row_list, sampling, seed = case
    whole = Device(len(row_list[0]))
    expected = [one.token for one in map(SequenceSampler(sampling, seed).draw, map(whole.row, row_list))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence_sampler, "WIDER", (2, 3, 9))
        drawn = [one.token for one in map(SequenceSampler(sampling, seed).draw, map(Device(1).row, row_list))]
    assert drawn == expected


@settings(max_examples=80, deadline=None)
@given(case=cases(plain=True))
def test_whole_rows_are_drawn_from_as_the_definition_says(case: tuple[list[F32], SamplingParams, int]) -> None:
    [row, *_], sampling, seed = case
    assume(sampling.temperature > 0.01)
    drawn = SequenceSampler(sampling, seed).draw(Device(len(row)).row(row))
    [uniform] = uniforms_from(seed, 0, 1, 1)
    allowed = {token for nudge in (-1e-9, 0.0, 1e-9) for token in by_definition(row, sampling, uniform, nudge)}
    assert drawn.token in allowed
    logits = row.astype(np.float64)
    assert drawn.logprob == pytest.approx(logits[drawn.token] - np.logaddexp.reduce(logits))


def by_definition(row: F32, sampling: SamplingParams, uniform: float, nudge: float) -> set[int]:
    """Return the tokens that the documented order, step by step, may draw.

    `nudge` moves the two comparisons that rounding may tip.
    """
    logits = row.astype(np.float64)
    for token, bias in sampling.logit_bias.items():
        assert isinstance(token, int)
        logits[token] += bias
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    order = sorted(range(len(row)), key=lambda token: (-logits[token], token))
    kept: list[int] = []
    before = 0.0
    for token in order[: sampling.top_k or None]:
        if kept and before > sampling.top_p + nudge:
            break
        kept.append(token)
        before += float(probabilities[token])
    weights = probabilities[kept] ** (1.0 / sampling.temperature)
    tokens = set()
    for moved in (uniform - 1e-9, uniform, uniform + 1e-9):
        reached = np.flatnonzero(np.cumsum(weights / weights.sum()) > moved)
        tokens.add(kept[int(reached[0])] if len(reached) else kept[-1])
    return tokens


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(),  # top_k exceeds the number of candidates; top_p cuts among them
        SamplingParams(top_k=0, top_p=0.9),
        SamplingParams(top_k=8, top_p=1.0, temperature=3.0),
        SamplingParams(top_k=0, top_p=0.9, presence_penalty=0.2, frequency_penalty=0.2),
        SamplingParams(logit_bias={900: -5.0, 0: -0.5}),
        SamplingParams(logit_bias={900: 5.0}),  # lifts a token from far below
    ],
)
def test_no_whole_row_is_read_where_the_candidates_settle_the_draw(sampling: SamplingParams) -> None:
    device = Device(num_candidates=16)
    sampler = SequenceSampler(sampling, seed=7)
    for _ in range(50):
        sampler.draw(device.row(peaked()))
    assert device.rows_read == 0


@pytest.mark.parametrize(("temperature", "undecided"), [(0.5, 0.01), (1.0, 0.005)])
def test_without_limits_whole_rows_are_read_little_more_often_than_the_draw_falls_outside(
    temperature: float, undecided: float
) -> None:
    device = Device(num_candidates=8)
    sampler = SequenceSampler(SamplingParams(temperature=temperature, top_p=1.0, top_k=0), seed=3)
    drawn = [sampler.draw(device.row(peaked())).token for _ in range(400)]
    outside = sum(token >= 8 for token in drawn)
    assert outside <= device.rows_read <= outside + 400 * undecided


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(temperature=0.0, logit_bias={900: 1000.0}), 900),
        (SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(range(8), -100.0)), 8),
    ],
)
def test_the_whole_row_is_read_where_bias_lifts_an_unread_token_or_pushes_candidates_below_them(
    sampling: SamplingParams, expected: int
) -> None:
    device = Device(num_candidates=8)
    noted: list[None] = []
    sampler = SequenceSampler(sampling, seed=0, note_whole_row=lambda: noted.append(None))
    assert sampler.draw(device.row(peaked())).token == expected
    assert device.rows_read == len(noted) == 1


def test_an_unread_token_that_bias_lifts_to_the_height_of_a_candidate_comes_first_by_its_id() -> None:
    row = np.array([0.0, 0.0, 3.0, 0.0], np.float32)
    sampling = SamplingParams(temperature=0.0, logit_bias={1: 3.0})
    assert SequenceSampler(sampling, seed=0).draw(Device(num_candidates=2).row(row)).token == 1


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    sampling = SamplingParams(top_p=1.0, top_k=0)
    flat = np.zeros(1000, np.float32)

    def tokens(seed: int) -> list[int]:
        sampler = SequenceSampler(sampling, seed)
        return [sampler.draw(Device(1000).row(flat)).token for _ in range(8)]

    assert tokens(5) == tokens(5)
    assert tokens(5) != tokens(6)


def test_greedy_takes_the_first_of_equals_and_ignores_top_p_and_top_k() -> None:
    row = np.array([0.0, 2.0, 2.0, 1.0], np.float32)
    greedy = SamplingParams(temperature=0.0, top_p=0.0, top_k=1)
    for sampling in (greedy, replace(greedy, top_p=1.0, top_k=0)):
        assert SequenceSampler(sampling, seed=0).draw(Device(1).row(row)).token == 1
