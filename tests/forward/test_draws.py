"""The device draws the same token as the host does from the whole row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.errors import InvalidRequestError
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.ranking import LogitRow, SequenceContext, top_logprobs
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from rnn_engine.types import F32, DrawPenalties, ModelShape, TokenDraw, TokenLogprobs, TokenRun, mask_words, run_step
from tests.support.draw_kernels import DrawKernels
from tests.support.gpu import make_gpu_runner
from tests.support.logit_rows import make_row, peaked
from tests.support.models import random_model, tiny_shape
from tests.support.older_models import OLDER_SHAPES

SIZES = [
    DrawKernels(257, 16),
    DrawKernels(1, 8),
    DrawKernels(7, 16),
    DrawKernels(65536, 128),
    DrawKernels(257, 16, "discrete"),
    DrawKernels(3000, 16, "discrete"),  # twelve workgroups share a row
]


@dataclass(frozen=True)
class Text:
    """A text with `index` drawn tokens, after `earlier` replies."""

    sampling: SamplingParams
    seed: int
    index: int
    vocab_size: int
    earlier: Sequence[int] = ()
    logprobs: int | None = None

    def sampler(self) -> SequenceSampler:
        earlier = [token % self.vocab_size for token in self.earlier]
        sampler = SequenceSampler(
            self.sampling, self.seed, SequenceContext(earlier=earlier, vocab_size=self.vocab_size, prompt=earlier)
        )
        sampler.index = self.index
        return sampler

    def draw_on_device(self) -> TokenDraw:
        sampler = self.sampler()
        assert sampler.draws_on_device(has_penalties=True)
        draw = sampler.device_draw(1, np.zeros(mask_words(self.vocab_size), np.uint32))
        draw.logprobs = self.logprobs
        return draw

    def draw_on_host(self, row: F32) -> int:
        return self.sampler().draw(LogitRow.of_full(row, len(row))).token


nuclei = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.01, 0.3, 1.0, 1.0, 1.7, 100.0]),
    top_p=st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 15, 16, 17, 128, 300]),
    presence_penalty=st.sampled_from([0.0, 0.3, 1.0, 50.0]),
    frequency_penalty=st.sampled_from([0.0, 0.3, 1e-6]),
    penalty_decay=st.sampled_from([0.1, 0.9, 0.99654026, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.1, 1.5, 100.0]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 8, 64]),
    logit_bias=st.dictionaries(st.just(0), st.sampled_from([-math.inf, -3.0, 0.5, 4.0, 1000.0]), max_size=1),
)


def with_biases(sampling: SamplingParams, row: F32, chance: np.random.Generator) -> SamplingParams:
    """Return `sampling` with its bias on one of the likeliest tokens, and with biases on some random tokens."""
    if not sampling.logit_bias:
        return sampling
    [value] = sampling.logit_bias.values()
    others = {int(token): float(chance.normal(0.0, 2.0)) for token in chance.integers(0, len(row), 5)}
    likely = int(np.argsort(-row)[: min(len(row), 40)][chance.integers(min(len(row), 40))])
    return replace(sampling, logit_bias={**others, likely: value})


@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kernels", SIZES, ids=str)
def test_what_is_settled_is_what_the_whole_row_leads_to(kernels: DrawKernels, data: st.DataObject) -> None:
    count = 2 if kernels.vocab_size > 10_000 else 8
    seed = data.draw(st.integers(0, 2**32 - 1))
    sampling = data.draw(st.lists(nuclei, min_size=count, max_size=count))
    rows = np.stack([make_row(seed + number, kernels.vocab_size) for number in range(count)])
    rows = np.where(np.isfinite(rows), rows, np.float32(-60.0))
    if data.draw(st.booleans()):
        rows = np.round(rows)  # many are equal
    greatest = np.argsort(-rows, axis=1, kind="stable")[:, :20]
    chance = np.random.default_rng(seed)
    earlier = [chance.choice(row, 12).tolist() if number % 2 else [] for number, row in enumerate(greatest)]
    seeds = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count))
    most_told = min(20, kernels.num_candidates, kernels.vocab_size)
    told = data.draw(st.lists(st.none() | st.integers(0, most_told), min_size=count, max_size=count))
    sampling = [with_biases(one, row, chance) for one, row in zip(sampling, rows, strict=True)]
    texts = list(map(Text, sampling, seeds, range(count), [kernels.vocab_size] * count, earlier, told))
    readout, drawn = kernels.run(rows, [text.draw_on_device() for text in texts])
    order = np.argsort(-rows, axis=1, kind="stable")[:, : readout.ids.shape[1]]
    np.testing.assert_array_equal(readout.ids, order)
    np.testing.assert_array_equal(readout.logits, np.take_along_axis(rows, order, axis=1))
    for number, (text, row, one) in enumerate(zip(texts, rows, drawn, strict=True)):
        if one.is_settled:
            assert list(one.tokens) == [text.draw_on_host(row)]
            candidates = LogitRow.of(readout, number, kernels.vocab_size)
            own = row.item(one.tokens[0]) - candidates.logsumexp
            expected = [] if text.logprobs is None else [TokenLogprobs(own, top_logprobs(candidates, text.logprobs))]
            assert list(one.logprobs) == expected
        else:
            assert list(one.tokens) == []
            assert (
                text.earlier
                or text.sampling.logit_bias
                or (text.sampling.temperature > 0.0 and text.sampling.top_k != 1)
            )


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(top_p=0.95, temperature=0.8),
        SamplingParams(top_k=0, top_p=1.0),
        SamplingParams(presence_penalty=0.3, frequency_penalty=0.3),
        SamplingParams(min_p=0.05, top_k=40, top_p=0.95, temperature=0.8),
        SamplingParams(repeat_penalty=1.1),
        SamplingParams(repeat_penalty=1.2, repeat_last_n=-1, top_p=0.95, temperature=0.8),
        SamplingParams(logit_bias={500: 5.0, 1: -math.inf, 2: 1.0, 3: -2.0}),
        SamplingParams(presence_penalty=1.0, frequency_penalty=0.5, top_p=0.95, temperature=0.8),
    ],
)
def test_nearly_all_draws_of_ordinary_rows_are_settled(sampling: SamplingParams) -> None:
    rows = np.stack([np.roll(peaked(), number) for number in range(100)])
    chance = np.random.default_rng(7)
    texts = [Text(sampling, seed, 3 * seed, 1000, (seed + chance.zipf(1.5, 30) - 1).tolist()) for seed in range(100)]
    _, drawn = DrawKernels(1000, 128).run(rows, [text.draw_on_device() for text in texts])
    assert sum(one.is_settled for one in drawn) >= 95
    for text, row, one in zip(texts, rows, drawn, strict=True):
        if one.is_settled:
            assert one.tokens[0] == text.draw_on_host(row)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nothing_is_drawn_from_a_row_that_is_not_finite(value: float) -> None:
    rows = np.stack([make_row(1, 257), make_row(2, 257)])
    rows = np.where(np.isfinite(rows), rows, np.float32(-60.0))
    rows[0, 100] = value
    greedy = TokenDraw(1, 0, 1, 0.5, 1.0)
    readout, drawn = SIZES[0].run(rows, [greedy, greedy])
    assert list(drawn[0].tokens) == []
    assert not drawn[0].is_settled
    assert readout.sound.tolist() == [False, True]
    assert list(drawn[1].tokens) == [int(rows[1].argmax())]


def test_rows_without_a_draw_are_left_alone() -> None:
    rows = np.stack([make_row(seed, 257) for seed in range(3)])
    _, drawn = SIZES[0].run(rows, [None, TokenDraw(1, 0, 1, 0.5, 1.0), None])
    assert [list(one.tokens) for one in drawn] == [[], [int(rows[1].argmax())], []]


@pytest.mark.parametrize("shape", [tiny_shape(), *OLDER_SHAPES], ids=lambda shape: shape.version)
def test_a_run_that_draws_leaves_what_single_steps_leave(shape: ModelShape) -> None:
    """With greedy draws, one run stops at its own stop token, one after a few tokens, and one goes on to the end."""
    model = random_model(shape, seed=40)
    runner = make_gpu_runner(model, num_slots=6, max_tokens=16, max_rows=6, num_candidates=8)
    starts, followed = [3, 1, 2], []
    for slot, token in enumerate(starts):
        tokens = [token]
        for _ in range(8):
            readout = run_step(runner, [TokenRun(slot, tokens[-1:], rows=1)])
            tokens.append(int(readout.ids[0, 0]))
        followed.append(tokens)
    halts = np.zeros(-(-model.shape.vocab_size // 32), np.uint32)
    halts[followed[0][3] // 32] |= np.uint32(1 << (followed[0][3] % 32))
    draws = [TokenDraw(0, 0, 1, 1.0, 1.0, 8, halts), TokenDraw(0, 0, 1, 1.0, 1.0, 5), TokenDraw(0, 0, 1, 1.0, 1.0, 8)]
    batch = [TokenRun(3 + n, starts[n : n + 1], rows=1, draw=draw) for n, draw in enumerate(draws)]
    readout = run_step(runner, batch)
    rows = [readout.full_row(row) for row in range(3)]
    stop = followed[0].index(followed[0][3], 1)
    for number, (tokens, end) in enumerate(zip(followed, (stop, 5, 8), strict=True)):
        assert list(readout.drawn[number].tokens) == tokens[1 : end + 1]
        assert readout.drawn[number].is_settled
        runner.write_state(number, None)
        expected = run_step(runner, [TokenRun(number, tokens[:end], rows=1)])
        np.testing.assert_allclose(rows[number], expected.full_row(0), atol=1e-4)
        for name, values in runner.read_state(number).items():
            np.testing.assert_allclose(runner.read_state(3 + number)[name], values, atol=1e-4)
    runner.close()


def test_draws_that_a_step_does_not_take_are_refused() -> None:
    model = random_model(tiny_shape(), seed=40)
    runner = make_gpu_runner(model, num_slots=2, max_tokens=16, max_rows=6, num_candidates=8)

    def refused(*runs: TokenRun) -> str:
        with pytest.raises(InvalidRequestError) as caught:
            runner.submit(runs)
        return str(caught.value)

    def refused_penalties(penalties: DrawPenalties) -> str:
        return refused(TokenRun(0, [1], rows=1, draw=TokenDraw(0, 0, 0, 1.0, 1.0, penalties=penalties)))

    draw = TokenDraw(0, 0, 0, 1.0, 1.0)
    several = TokenDraw(0, 0, 0, 1.0, 1.0, count=2)
    assert "run 0: draw" in refused(TokenRun(0, [1], draw=draw))
    assert "draw count" in refused(TokenRun(0, [1], rows=1, draw=TokenDraw(0, 0, 0, 1.0, 1.0, count=17)))
    assert "draw halts" in refused(
        TokenRun(0, [1], rows=1, draw=TokenDraw(0, 0, 0, 1.0, 1.0, 1, np.zeros(1, np.uint64)))
    )
    assert "draw logprobs" in refused(TokenRun(0, [1], rows=1, draw=TokenDraw(0, 0, 0, 1.0, 1.0, logprobs=9)))
    assert "penalties: seen" in refused_penalties(DrawPenalties(0.0, 0.0, 1.0, repeat=1.1, seen=np.zeros(3, np.uint32)))
    assert "run 1" in refused(TokenRun(0, [1], rows=1, draw=several), TokenRun(1, [1], rows=1))
    assert "run 0" in refused(TokenRun(0, [1, 2], rows=1, draw=several))
    runner.close()
