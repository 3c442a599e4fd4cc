"""Prompts that go on from cached states: the same answers for less work, and no harm from a failing cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.errors import RnnEngineError
from rnn_engine.forward import CpuRunner
from rnn_engine.reference import Weights
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, Started, TextDelta, TokenInfo
from rnn_engine.scheduler import Scheduler
from rnn_engine.types import F32, Batch, Ticket
from rnn_engine.versions.v7 import run_layers
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.models import random_model, tiny_shape

MODEL = random_model(tiny_shape(), seed=41)
TEXT: list[int] = np.random.default_rng(42).integers(1, MODEL.shape.vocab_size, size=200).tolist()


class CountingRunner(CpuRunner):
    """A runner that counts the tokens that it runs."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(Weights.read(MODEL), run_layers, num_slots=num_slots)
        self.tokens_run = 0

    def submit(self, batch: Batch, carried: Sequence[F32] = ()) -> Ticket:
        self.tokens_run += sum(len(run.tokens) for run in batch)
        return super().submit(batch, carried)


@dataclass
class Outcome:
    """The events of one request."""

    cached_tokens: int = -1
    tokens: list[TokenInfo] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [info.token for info in self.tokens]


class Desk:
    """A scheduler with a cache, run until it has no more work. By its clock all steps are short."""

    def __init__(self, num_bytes: int = 1 << 24, num_slots: int = 3) -> None:
        self.runner = CountingRunner(num_slots)
        self.cache = make_cache(MODEL.shape, "a model", self.runner, CacheConfig(host_capacity=num_bytes))
        cache = self.cache if num_bytes else None
        self.scheduler = Scheduler(self.runner, lambda token: bytes([token]), cache, clock=lambda: 0.0)
        self.num_requests = 0

    def run(self, *requests: GenerateRequest) -> list[Outcome]:
        outcomes = {self.num_requests + index: Outcome() for index in range(len(requests))}
        for key, request in zip(outcomes, requests, strict=True):
            self.scheduler.submit(key, request)
        self.num_requests += len(requests)
        while self.scheduler.has_work:
            for delivery in self.scheduler.step():
                assert not isinstance(delivery.outcome, RnnEngineError)
                if isinstance(delivery.outcome, Started):
                    outcomes[delivery.key].cached_tokens = delivery.outcome.cached_tokens
                if isinstance(delivery.outcome, TextDelta):
                    outcomes[delivery.key].tokens += delivery.outcome.tokens
        return list(outcomes.values())


def ask(prompt: list[int], new_tokens: int = 5, *, scored: bool = False) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0)
    return GenerateRequest(
        prompt, max_tokens=new_tokens, stop_tokens=(), sampling=sampling, logprobs=0, score_from=0 if scored else None
    )


def assert_same(found: Outcome, expected: Outcome) -> None:
    assert found.ids == expected.ids
    differences = [
        abs((one.logprob or 0) - (other.logprob or 0)) for one, other in zip(found.tokens, expected.tokens, strict=True)
    ]
    assert max(differences) < 1e-4


def test_an_exact_repeat_runs_nothing_of_the_prompt() -> None:
    desk = Desk()
    (first,) = desk.run(ask(TEXT[:60]))
    before = desk.runner.tokens_run
    (again,) = desk.run(ask(TEXT[:60]))
    assert (first.cached_tokens, again.cached_tokens) == (0, 60)
    assert desk.runner.tokens_run - before == 4  # all new tokens but the last
    assert_same(again, first)


@pytest.mark.parametrize("new_tokens", [0, 1])
def test_a_repeat_that_wants_no_more_than_a_token_takes_no_step(new_tokens: int) -> None:
    desk = Desk()
    desk.run(ask(TEXT[:20]))
    before = desk.runner.tokens_run
    (again,) = desk.run(ask(TEXT[:20], new_tokens))
    assert len(again.tokens) == new_tokens
    assert desk.runner.tokens_run == before


def test_a_repeat_hears_its_first_token_before_a_batch_and_a_second_one_holds_up_nobody() -> None:
    desk = Desk()
    desk.run(ask(TEXT[:60]))
    desk.scheduler.submit(7, ask(TEXT[:60]))
    before = desk.runner.tokens_run
    assert any(isinstance(delivery.outcome, TextDelta) for delivery in desk.scheduler.step())
    assert desk.runner.tokens_run == before
    desk.scheduler.submit(8, ask(TEXT[:60]))
    assert {delivery.key for delivery in desk.scheduler.step()} == {7, 8}
    assert desk.runner.tokens_run == before + 2


def test_many_that_take_no_step_do_not_hold_up_an_answer() -> None:
    desk = Desk()
    desk.run(ask(TEXT[:20]))
    desk.scheduler.submit(7, ask(TEXT[:60], 10))
    for key in range(100, 150):
        desk.scheduler.submit(key, ask(TEXT[:20], 0))
    ended: list[int] = []
    while 7 not in ended:
        ended += [delivery.key for delivery in desk.scheduler.step() if isinstance(delivery.outcome, Finished)]
    assert len(ended) < 30


def test_a_conversation_goes_on_from_its_last_answer() -> None:
    desk = Desk()
    (first,) = desk.run(ask(TEXT[:50]))
    longer = TEXT[:50] + first.ids + TEXT[50:70]
    (second,) = desk.run(ask(longer))
    assert second.cached_tokens == 50 + 4  # the last token drawn was never run
    assert_same(second, *Desk(num_bytes=0).run(ask(longer)))


def test_a_branch_is_kept_where_a_second_prompt_leaves_the_first() -> None:
    desk = Desk()
    prompts = [TEXT[:100] + TEXT[100 + 10 * index : 140 + 10 * index] for index in range(3)]
    cached = [desk.run(ask(prompt))[0].cached_tokens for prompt in prompts]
    assert cached == [0, 0, 100]


@pytest.mark.parametrize("marked", [False, True])
def test_short_questions_after_a_long_shared_text_go_on_from_its_end(marked: bool) -> None:
    text = (TEXT * 7)[:1400]
    desk = Desk()
    cached = []
    for number in range(5):
        request = ask([*text, *range(10 + number, 15 + number)], 2)
        (outcome,) = desk.run(replace(request, checkpoint_positions=[len(text)] if marked else []))
        cached.append(outcome.cached_tokens)
    assert cached == ([0, 1400, 1400, 1400, 1400] if marked else [0, 1280, 1400, 1400, 1400])


def test_a_prompt_whose_tokens_are_scored_is_run_whole() -> None:
    desk = Desk()
    desk.run(ask(TEXT[:30]))
    (scored,) = desk.run(ask(TEXT[:30], scored=True))
    assert scored.cached_tokens == 0


def test_bytes_stay_in_their_bound() -> None:
    state_bytes = sum(values.nbytes for values in MODEL.shape.initial_state().values())
    desk = Desk(num_bytes=5 * state_bytes)
    for start in range(20):
        desk.run(ask(TEXT[start : start + 10]))
    (tier,) = [tier for tier in desk.cache.stats().tiers if tier.capacity == 5 * state_bytes]
    assert 0 < tier.used <= 5 * state_bytes


@pytest.mark.parametrize("method", ["prefetch", "look_up", "restore", "insert"])
def test_a_cache_that_fails_costs_no_answer(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    (expected,) = desk.run(ask(TEXT[:40]))

    def fail(*_args: object, **_fields: object) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(desk.cache, method, fail)
    for found in desk.run(ask(TEXT[:40]), ask(TEXT[:40])):
        assert_same(found, expected)


PARTS = st.lists(st.sampled_from([(0, 40), (40, 90), (90, 97), (3, 60)]), min_size=1, max_size=3)


@settings(max_examples=25)
@given(rounds=st.lists(st.lists(PARTS, min_size=1, max_size=4), min_size=1, max_size=4), slots=st.integers(1, 4))
def test_answers_are_those_without_a_cache(rounds: list[list[list[tuple[int, int]]]], slots: int) -> None:
    desk, plain = Desk(num_slots=slots), Desk(num_bytes=0)
    for prompts in rounds:
        requests = [ask([token for start, end in parts for token in TEXT[start:end]]) for parts in prompts]
        for found, expected in zip(desk.run(*requests), plain.run(*requests), strict=True):
            assert_same(found, expected)
            assert expected.cached_tokens == 0


def test_a_sampled_answer_is_the_same_from_a_kept_state() -> None:
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, seed=7)
    request = replace(ask(TEXT[:30], 12), sampling=sampling)
    desk = Desk()
    (first,), (again,) = desk.run(request), desk.run(request)
    assert again.cached_tokens == 30
    assert_same(again, first)
