"""A sampler of another kind, with state and with use of the whole row, runs in the same code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rnn_engine.requests import GenerateRequest
from rnn_engine.sampling.params import Sampler, SamplingParams
from rnn_engine.sampling.ranking import Ranking, SequenceContext
from rnn_engine.sampling.sequence_sampler import SequenceSampler, uniforms_from
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits
from tests.support.logit_rows import Device, make_row

TOKENIZER = ByteTokenizer()
CHANCES = [0.5, 0.24, 0.16, 0.1]
VOCAB_SIZE = TOKENIZER.size


class Steered:
    """A sampler like mirostat: it takes no token more surprising than a limit, which moves with every drawn token.

    With its second random number it leaves out the likeliest token half the time, if there is another one.
    """

    num_uniforms = 2
    whole_row = True
    selection = None

    def __init__(self) -> None:
        self.limit = 3.0  # bits
        self.surprises: list[float] = []

    def draw(self, ranking: Ranking, uniforms: Sequence[float]) -> int | None:
        assert ranking.rest is None
        surprises = self._surprises(ranking)
        kept = max(1, int(np.count_nonzero(surprises <= self.limit)))
        first = int(kept > 1 and uniforms[0] < 0.5)
        mass = np.exp2(-surprises[first:kept]).cumsum()
        return first + int(mass.searchsorted(uniforms[1] * mass[-1], side="right"))

    def drawn(self, ranking: Ranking, index: int) -> None:
        surprise = float(self._surprises(ranking)[index])
        self.surprises.append(surprise)
        self.limit = max(self.limit - 0.5 * (surprise - 2.0), 0.5)

    def _surprises(self, ranking: Ranking) -> NDArray[np.float64]:
        mass = np.exp(ranking.logits - ranking.logits[0])
        surprises: NDArray[np.float64] = -np.log2(mass / mass.sum())
        return surprises


@dataclass(frozen=True)
class SteeredParams(SamplingParams):
    def make_sampler(self, context: SequenceContext) -> Sampler:
        return Steered()


@settings(max_examples=40, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=6),
    num_candidates=st.integers(1, 30),
    penalty=st.sampled_from([0.0, 0.7]),
    bias=st.dictionaries(st.integers(0, 29), st.sampled_from([-3.0, 2.0]), max_size=3),
)
def test_it_sees_the_whole_adjusted_row_however_few_candidates_are_read(
    seeds: list[int], num_candidates: int, penalty: float, bias: dict[int, float]
) -> None:
    params = SteeredParams(presence_penalty=penalty, logit_bias=bias)
    rows = [np.maximum(make_row(seed, 30), np.float32(-50.0)) for seed in seeds]
    few, whole = Device(num_candidates), Device(30)
    by_few, by_whole = SequenceSampler(params, 5), SequenceSampler(params, 5)
    drawn = [by_few.draw(few.row(row)) for row in rows]
    expected = [by_whole.draw(whole.row(row)) for row in rows]
    assert [one.token for one in drawn] == [one.token for one in expected]
    assert [one.logprob for one in drawn] == pytest.approx([one.logprob for one in expected])
    assert few.rows_read == (len(rows) if num_candidates < 30 else 0)


def test_it_is_told_of_every_draw_once_and_gets_as_many_random_numbers_as_it_takes() -> None:
    sampler = Steered()

    class Params(SamplingParams):
        def make_sampler(self, context: SequenceContext) -> Sampler:
            return sampler

    logits = np.log(np.array(CHANCES)).astype(np.float32)
    by_hand = uniforms_from(11, 0, 20, 2)
    machinery = SequenceSampler(Params(), 11)
    tokens = [machinery.draw(Device(2).row(logits)).token for _ in range(20)]
    assert sampler.surprises == pytest.approx([-math.log2(CHANCES[token]) for token in tokens])
    limit, expected = 3.0, []
    for skip, uniform in zip(by_hand[0::2], by_hand[1::2], strict=True):
        chances = [(p, token) for token, p in enumerate(CHANCES) if -math.log2(p) <= limit]
        chances = chances or [(CHANCES[0], 0)]
        chances = chances[1:] if skip < 0.5 and len(chances) > 1 else chances
        reached = np.cumsum([p for p, _ in chances]) / sum(p for p, _ in chances)
        expected.append(chances[int(np.flatnonzero(reached > uniform)[0])][1])
        limit = max(limit - 0.5 * (-math.log2(CHANCES[expected[-1]]) - 2.0), 0.5)
    assert tokens == expected


def test_through_the_scheduler_it_answers_as_alone() -> None:
    logits = random_logits(VOCAB_SIZE)
    clients = Clients(FakeRunner(logits), TOKENIZER.decode_bytes)
    plain = SamplingParams(temperature=1.0, top_p=0.9, seed=3)
    requests = [
        GenerateRequest([1 + n, 2, 3], max_tokens=12, stop_tokens=(), sampling=sampling, logprobs=1)
        for n, sampling in enumerate([SteeredParams(seed=8, frequency_penalty=0.4), plain, SteeredParams(seed=9)])
    ]
    keys = [clients.send(request) for request in requests]
    clients.run()
    for key, request in zip(keys, requests, strict=True):
        assert_heard(clients.heard[key], run_alone(request, logits, TOKENIZER.decode_bytes))
    same = replace(requests[0], sampling=replace(plain, seed=8, frequency_penalty=0.4))
    assert run_alone(same, logits, TOKENIZER.decode_bytes).tokens != clients.heard[keys[0]].tokens
