"""A client gets the same answer if the host draws or the device, one token or several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.scheduler import DraftSettings
from rnn_engine.types import Runner
from tests.support.drawing_cases import Answer, answer_all, make_request, make_runner

NUM_REQUESTS = 40


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = make_runner()
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def alone(runner: Runner) -> Callable[[int], Answer]:
    @cache
    def answer(number: int) -> Answer:
        return answer_all(runner, {number: 0}, {}, max_draws=0)[number]

    return answer


@settings(max_examples=12, deadline=None)
@given(
    arrivals=st.dictionaries(st.integers(0, NUM_REQUESTS - 1), st.integers(0, 6), min_size=1, max_size=8),
    leaves=st.dictionaries(st.integers(0, NUM_REQUESTS - 1), st.integers(0, 20), max_size=3),
)
@pytest.mark.parametrize("max_draws", [1, 16])
def test_answers_are_those_that_the_host_draws_for_each_request_alone(
    runner: Runner, alone: Callable[[int], Answer], max_draws: int, arrivals: dict[int, int], leaves: dict[int, int]
) -> None:
    leaves = {number: count for number, count in leaves.items() if number in arrivals}
    for number, answer in answer_all(runner, arrivals, leaves, max_draws=max_draws).items():
        if answer.finished is None:
            assert number in leaves
            answer.assert_begins(alone(number))
        else:
            answer.assert_same(alone(number))


@settings(max_examples=4, deadline=None)
@given(arrivals=st.dictionaries(st.integers(0, NUM_REQUESTS - 1), st.integers(0, 6), min_size=1, max_size=8))
def test_the_last_of_two_devices_draws_the_same(alone: Callable[[int], Answer], arrivals: dict[int, int]) -> None:
    with closing(make_runner(is_split=True)) as runner:
        assert runner.max_draws == 1
        for number, answer in answer_all(runner, arrivals, {}, max_draws=16).items():
            answer.assert_same(alone(number))


def test_a_stop_string_ends_the_text_and_the_state_where_it_is_found(runner: Runner) -> None:
    def endless(number: int) -> GenerateRequest:
        sampling = SamplingParams(top_p=0.7, top_k=20, seed=number)
        return GenerateRequest([1 + number], max_tokens=40, stop_tokens=(), sampling=sampling, keep_end=True)

    arrivals = dict.fromkeys(range(4), 0)
    whole = answer_all(runner, arrivals, {}, max_draws=0, request_of=endless)

    def stopping(number: int) -> GenerateRequest:
        letters = [letter for letter in whole[number].text if letter.isascii()]
        place = next(place for place in range(9, len(letters)) if letters[place] not in letters[:place])
        return replace(endless(number), stop=(letters[place].encode(),))

    expected = answer_all(runner, arrivals, {}, max_draws=0, request_of=stopping)
    for number, answer in answer_all(runner, arrivals, {}, max_draws=8, request_of=stopping).items():
        assert answer.finished is not None
        assert answer.finished.reason == "stop"
        answer.assert_same(expected[number])


@pytest.mark.parametrize("max_draws", [0, 16])
def test_drafts_change_nothing_either(runner: Runner, max_draws: int) -> None:
    def repeating(number: int) -> GenerateRequest:
        """Return a request with a part three times in its prompt. It draws greedily, or one of two tokens by chance."""
        asked = make_request(number)
        by_chance = {"temperature": 50.0, "top_p": 1.0, "top_k": 0, "logit_bias": {5: 5000.0, 6: 5000.0}}
        sampling = replace(asked.sampling, **(by_chance if number % 2 else {"temperature": 0.0}))
        prompt = tuple(asked.prompt[:9]) * 3
        return replace(asked, prompt=prompt, max_tokens=30, stop=(), stop_tokens=(), sampling=sampling, token_mask=None)

    arrivals = {number: number // 2 for number in range(8)}
    plain = answer_all(runner, arrivals, {}, max_draws=0, request_of=repeating)
    drafted = answer_all(
        runner, arrivals, {}, max_draws=max_draws, request_of=repeating, drafts=DraftSettings(5, range(3, 5))
    )
    for number, answer in drafted.items():
        answer.assert_same(plain[number])
    ends = [answer.finished for answer in drafted.values() if answer.finished is not None]
    num_drafted, num_accepted = (sum(end.draft_tokens for end in ends), sum(end.accepted_tokens for end in ends))
    assert 0 < num_accepted < num_drafted
