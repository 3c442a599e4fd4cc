"""Tokens drawn for many sequences at once are the same as those that each sequence draws alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.sampling import together
from rnn_engine.sampling.masks import AllowedTokens, allowed_tokens
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.rows import RunRows
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from rnn_engine.sampling.together import JointDraws
from rnn_engine.types import F32, Readout
from tests.support.logit_rows import LOGSUMEXP_ERROR, make_row, params, peaked
from tests.support.token_masks import pack_mask


@pytest.fixture(autouse=True)
def few_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "FEWEST", 1)


def read_out(rows: list[F32], masks: list[AllowedTokens | None], num_candidates: int, error: float) -> Readout:
    """Return the read-out of `rows`, as runners make it."""
    masked = [row.copy() for row in rows]
    for row, allowed in zip(masked, masks, strict=True):
        if allowed is not None:
            row[np.setdiff1d(np.arange(len(row)), allowed_tokens(allowed.mask, len(row)))] = -np.inf
    ids = np.array([np.argsort(-row, kind="stable")[:num_candidates] for row in masked], np.int32)
    return Readout(
        ids=ids,
        logits=np.take_along_axis(np.array(masked), ids, axis=1),
        logsumexp=_logsumexp(rows, error),
        allowed_logsumexp=_logsumexp(masked, error),
        target_logits=np.full(len(rows), np.nan, np.float32),
        sound=np.ones(len(rows), np.bool_),
        full_row=lambda row: rows[row],
    )


def _logsumexp(rows: list[F32], error: float) -> F32:
    return np.array([np.logaddexp.reduce(row.astype(np.float64)) + error for row in rows], np.float32)


def draw_all(
    draws: JointDraws,
    samplers: list[SequenceSampler],
    rows: list[F32],
    masks: list[AllowedTokens | None],
    readout: Readout,
) -> tuple[list[int], int]:
    """Draw together, and singly if that settles nothing; return the tokens and the number settled together."""
    run_rows = [RunRows(readout, row, 1, len(rows[0]), allowed) for row, allowed in enumerate(masks)]
    drawn = draws.draw(samplers, run_rows)
    apart = [draw or sampler.draw(own.last()) for draw, sampler, own in zip(drawn, samplers, run_rows, strict=True)]
    return [draw.token for draw in apart], sum(draw is not None for draw in drawn)


def join(samplers: list[SequenceSampler], vocab_size: int) -> JointDraws:
    draws = JointDraws(vocab_size, len(samplers))
    for slot, sampler in enumerate(samplers):
        draws.join(slot, sampler)
    return draws


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[SamplingParams], list[int], list[list[int]]]:
    vocab_size = draw(st.integers(2, 24))
    sampling = draw(st.lists(params(vocab_size), min_size=1, max_size=5))
    seeds = draw(st.lists(st.integers(0, 2**32), min_size=1, max_size=4))
    ids = st.lists(st.integers(0, vocab_size - 1), max_size=4)
    return vocab_size, sampling, seeds, [draw(ids) for _ in sampling]


@settings(max_examples=200, deadline=None)
@given(
    batch=batches(),
    num_candidates=st.integers(1, 24),
    error=st.floats(-LOGSUMEXP_ERROR, LOGSUMEXP_ERROR),
    change_slots=st.booleans(),
)
def test_tokens_are_those_that_each_sequence_draws_by_itself(
    batch: tuple[int, list[SamplingParams], list[int], list[list[int]]],
    num_candidates: int,
    error: float,
    change_slots: bool,
) -> None:
    vocab_size, sampling, seeds, allowed_ids = batch
    masks = [_allow(ids, vocab_size) if ids else None for ids in allowed_ids]
    joined, alone = ([SequenceSampler(one, seed) for seed, one in enumerate(sampling)] for _ in range(2))
    draws = join(joined, vocab_size)
    for seed in seeds:
        rows = [_finite_where(make_row(seed + number, vocab_size), ids) for number, ids in enumerate(allowed_ids)]
        few = read_out(rows, masks, min(num_candidates, vocab_size), error)
        whole = read_out(rows, masks, vocab_size, 0.0)
        tokens, _ = draw_all(draws, joined, rows, masks, few)
        run_rows = [RunRows(whole, row, 1, vocab_size, allowed) for row, allowed in enumerate(masks)]
        assert tokens == [one.draw(own.last()).token for one, own in zip(alone, run_rows, strict=True)]
        if change_slots:
            for one in joined:
                draws.leave(one)
            for one in joined:
                draws.join(len(joined) - 1 - one.slot, one)


def _allow(ids: list[int], vocab_size: int) -> AllowedTokens:
    mask = pack_mask(np.unique(ids).astype(np.int32), vocab_size)
    return AllowedTokens(mask, vocab_size)


def _finite_where(row: F32, ids: list[int]) -> F32:
    row[ids] = np.maximum(row[ids], -50.0)
    return row


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(),
        SamplingParams(top_k=0, top_p=0.9),
        SamplingParams(top_k=8, top_p=1.0, temperature=3.0),
        SamplingParams(top_k=0, top_p=0.9, temperature=0.3),
        SamplingParams(top_p=0.3, presence_penalty=0.1, frequency_penalty=0.01),
    ],
)
def test_the_candidates_settle_the_draws_of_ordinary_rows(sampling: SamplingParams) -> None:
    rows = [np.roll(peaked(), number) for number in range(8)]
    readout = read_out(rows, [None] * 8, 16, 0.0)
    samplers = [SequenceSampler(sampling, seed) for seed in range(8)]
    draws = join(samplers, 1000)
    for _ in range(20):
        assert draw_all(draws, samplers, rows, [None] * 8, readout)[1] == 8


def test_a_row_without_probabilities_disturbs_no_other() -> None:
    rows = [peaked(), peaked()]
    readout = read_out(rows, [None] * 2, 8, 0.0)
    readout.logsumexp[0] = np.inf
    samplers = [SequenceSampler(SamplingParams(), seed) for seed in range(2)]
    run_rows = [RunRows(readout, row, 1, 1000) for row in range(2)]
    drawn = join(samplers, 1000).draw(samplers, run_rows)
    assert drawn[0] is None
    assert drawn[1] == SequenceSampler(SamplingParams(), 1).draw(run_rows[1].last())


def test_a_slot_begins_without_the_penalties_of_the_sequence_before() -> None:
    rows = [peaked(), peaked()]
    readout = read_out(rows, [None] * 2, 8, 0.0)
    sampling = SamplingParams(temperature=0.0, presence_penalty=100.0)
    draws, before, after = JointDraws(1000, 2), SequenceSampler(sampling, 0), SequenceSampler(sampling, 0)
    others = SequenceSampler(SamplingParams(temperature=0.0), 0)
    draws.join(1, others)
    for sampler in (before, after):
        draws.join(0, sampler)
        drawn = [draw_all(draws, [sampler, others], rows, [None] * 2, readout)[0] for _ in range(3)]
        assert drawn == [[0, 0], [1, 0], [2, 0]]


def test_penalties_go_along_with_sequences_that_change_their_slots() -> None:
    sampling, vocab_size = SamplingParams(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.5), 12
    joined, alone = ([SequenceSampler(sampling, seed) for seed in range(7)] for _ in range(2))
    draws = join(joined, vocab_size)
    for number in range(30):
        rows = [make_row(7 * number + place, vocab_size) for place in range(7)]
        readout = read_out(rows, [None] * 7, vocab_size, 0.0)
        tokens, num_settled = draw_all(draws, joined, rows, [None] * 7, readout)
        run_rows = [RunRows(readout, row, 1, vocab_size) for row in range(7)]
        assert tokens == [one.draw(own.last()).token for one, own in zip(alone, run_rows, strict=True)]
        assert num_settled > 0
        for one in joined:
            draws.leave(one)
        for one in joined:
            draws.join((one.slot + 3) % 7, one)
