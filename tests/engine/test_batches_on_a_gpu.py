"""A request's tokens on a GPU do not depend on the requests in its steps, its slot, or the cuts of its prompt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta
from rnn_engine.scheduler import Scheduler
from rnn_engine.types import Runner
from tests.support.gpu import make_gpu_runner
from tests.support.models import random_model, tiny_shape
from tests.support.token_masks import Residues

NUM_SLOTS, NUM_REQUESTS, NEW_TOKENS = 8, 12, 10
MODEL = random_model(tiny_shape(), seed=31)


def make_request(number: int) -> GenerateRequest:
    """Return the request of this number. Every other one is greedy, every third masked; prompts have 1 to 90 tokens."""
    generator = np.random.default_rng([32, number])
    prompt = generator.integers(1, MODEL.shape.vocab_size, size=1 + number**2 * 90 // NUM_REQUESTS**2)
    sampling = SamplingParams(temperature=0.0 if number % 2 else 1.0, top_p=0.9, presence_penalty=0.3, seed=number)
    return GenerateRequest(
        prompt.tolist(),
        max_tokens=NEW_TOKENS,
        stop_tokens=(),
        sampling=sampling,
        token_mask=None if number % 3 else lambda: Residues(MODEL.shape.vocab_size),
        logprobs=0,
    )


def run(runner: Runner, arrivals: dict[int, int]) -> dict[int, list[int]]:
    """Return each request's new tokens. Request `number` arrives before step `arrivals[number]`."""
    scheduler = Scheduler(runner, lambda token: bytes([token]), mask_seconds=60.0)  # no mask is late
    tokens: dict[int, list[int]] = {number: [] for number in arrivals}
    step = 0
    while scheduler.has_work or step <= max(arrivals.values()):
        for number, arrival in arrivals.items():
            if arrival == step:
                scheduler.submit(number, make_request(number))
        for delivery in scheduler.step():
            assert not isinstance(delivery.outcome, Exception)
            if isinstance(delivery.outcome, TextDelta):
                tokens[delivery.key] += [info.token for info in delivery.outcome.tokens]
        step += 1
    return tokens


@cache
def tokens_alone(number: int) -> list[int]:
    """Return the new tokens of a request that numpy runs alone."""
    (tokens,) = run(load_runner(MODEL, "cpu", RunnerSize(1, max_tokens=256)), {number: 0}).values()
    assert len(tokens) == NEW_TOKENS
    return tokens


@pytest.fixture(scope="module", params=[8, 128])
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    runner = make_gpu_runner(MODEL, num_slots=NUM_SLOTS, max_tokens=request.param, max_rows=8, num_candidates=64)
    yield runner
    runner.close()


@settings(max_examples=8)
@given(arrivals=st.dictionaries(st.integers(0, NUM_REQUESTS - 1), st.integers(0, 12), min_size=1))
def test_tokens_are_those_of_the_request_alone(runner: Runner, arrivals: dict[int, int]) -> None:
    assert run(runner, arrivals) == {number: tokens_alone(number) for number in arrivals}
