"""Scores of choices: compared with figures by hand and with one at a time on the demo model, and refusals."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.errors import InvalidRequestError, StepError
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.operations.parallel import Cost
from rnn_engine.operations.scoring import ChoiceScore, probabilities, score_choices, total_cost
from rnn_engine.requests import GenerateRequest, PromptScored
from rnn_engine.types import InitialState
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine, encode, state_after

MOST_ROUNDING = 1e-3  # by which other texts in the same step can change a token's log-probability


def known_start(root: str = "a root") -> InitialState:
    return InitialState(root, state_after([1]), np.zeros(VOCAB_SIZE, np.float32))


async def test_figures_by_hand() -> None:
    """The fake engine gives token t the log-probability -t / 100."""
    [score] = await score_choices(FakeEngine(), encode("context"), [encode("aé")])
    a, e1, e2 = b"a"[0] + 1, 0xC3 + 1, 0xA9 + 1
    assert [info.logprob for info in score.given.tokens] == [-a / 100, -e1 / 100, -e2 / 100]
    assert score.total == pytest.approx(-(a + e1 + e2) / 100)
    assert score.mean == pytest.approx(score.total / 3)
    assert score.per_byte == pytest.approx(score.total / 3)
    assert score.perplexity == pytest.approx(math.exp((a + e1 + e2) / 300))


async def test_a_choice_is_one_request_that_is_scored_from_the_context_on() -> None:
    engine = FakeEngine()
    await score_choices(engine, encode("ab"), [encode("x"), encode("yz")])
    assert [list(request.prompt) for request in engine.requests] == [encode("abx"), encode("abyz")]
    assert {(request.score_from, request.max_tokens, request.logprobs) for request in engine.requests} == {(2, 0, 0)}


async def test_scores_come_in_the_order_of_the_choices_whatever_the_number_of_slots() -> None:
    choices = [encode(text) for text in ["the", "quick", "brown", "fox"]]
    for num_slots in (1, 2, 3):
        engine = FakeEngine(num_slots=num_slots)
        scores = await score_choices(engine, [1], choices)
        assert [[info.token for info in score.given.tokens] for score in scores] == choices
        assert engine.most_active == num_slots


async def test_calibration_takes_off_what_the_choice_has_after_token_0() -> None:
    engine = FakeEngine()
    scores = await score_choices(engine, encode("ab"), [encode("x"), encode("yz")], calibrate=True)
    prompts = [list(request.prompt) for request in engine.requests]
    assert prompts == [encode("abx"), encode("abyz"), [0, *encode("x")], [0, *encode("yz")]]
    assert [request.score_from for request in engine.requests] == [2, 2, 1, 1]
    for score in scores:  # the fake engine ignores the context
        assert (score.total, score.mean, score.per_byte, score.perplexity) == (0, 0, 0, 1)
        assert score.alone is not None
        assert score.alone.total == score.given.total < 0


async def test_empty_context_is_token_0() -> None:
    engine = FakeEngine()
    await score_choices(engine, [], [encode("x")])
    assert list(engine.requests[0].prompt) == [0, *encode("x")]
    assert engine.requests[0].score_from == 1


async def test_empty_context_goes_on_from_known_logits() -> None:
    engine = FakeEngine()
    [score] = await score_choices(engine, [], [encode("x")], initial_state=known_start(), calibrate=True)
    assert [list(request.prompt) for request in engine.requests] == [encode("x"), [0, *encode("x")]]
    assert [request.score_from for request in engine.requests] == [0, 1]
    assert {request.initial_state.root for request in engine.requests if request.initial_state} == {"a root"}
    assert score.given.tokens[0].logprob == -encode("x")[0] / 100
    without = replace(known_start(), logits=None)
    await score_choices(engine, [], [encode("x")], initial_state=without)
    assert list(engine.requests[2].prompt) == [0, *encode("x")]


async def test_tokens_without_text_have_no_figure_a_byte() -> None:
    [score] = await score_choices(FakeEngine(), [1], [[0, 0]])
    assert score.per_byte is None


@given(st.lists(st.floats(-1000, 0), min_size=1, max_size=20))
def test_probabilities_are_a_softmax(figures: list[float]) -> None:
    likely = probabilities(figures)
    assert math.fsum(likely) == pytest.approx(1)
    for figure, probability in zip(figures, likely, strict=True):
        others = math.fsum(math.exp(min(other - figure, 700)) for other in figures)
        assert probability == pytest.approx(1 / others, abs=1e-9)


@pytest.mark.parametrize(
    ("context", "choices", "field"),
    [
        ([1], [], "choices"),
        ([1], [[1], []], "choices.1"),
        ([1, 257], [[1]], "context token 1"),
        ([1], [[1], [2, -1]], "choices.1 token 1"),
    ],
)
async def test_what_is_refused_runs_nothing(context: list[int], choices: list[list[int]], field: str) -> None:
    engine = FakeEngine()
    with pytest.raises(InvalidRequestError) as refused:
        await score_choices(engine, context, choices)
    assert refused.value.field == field
    assert engine.requests == []


async def test_failure_of_one_choice_is_told() -> None:
    with pytest.raises(StepError, match="device was lost"):
        await score_choices(FakeEngine(fail_at=0), [1], [[1], [2]])


async def test_score_that_is_no_number_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FakeEngine()
    tell = broken._score_prompt

    def tell_nan(request: GenerateRequest, first: int) -> tuple[object, ...]:
        return tuple(replace(info, logprob=math.nan) for info in tell(request, first))

    monkeypatch.setattr(broken, "_score_prompt", tell_nan)
    with pytest.raises(StepError, match="token 5 is nan; expected a finite number"):
        await score_choices(broken, [1], [[5]])


CONTEXT = "".join(
    f"User: {question}\n\nAssistant:{answer}"
    for question, answer in [
        ("How much is 12 + 30?", " 42\n\n"),
        ("What is the capital of Spain?", " Madrid\n\n"),
        ("What is the capital of France?", ""),
    ]
)  # so many tokens that no prompt waits for another
CHOICES = [" Paris", " Rome", " a city", " Madrid", " I do not know.", " 12", " Pa", " Paris, of course"]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with await Engine.load(model_path(), LoadSettings("cpu"), num_slots=3) as engine:
        yield engine


async def score_alone(context: Sequence[int], choices: Sequence[Sequence[int]]) -> list[list[float | None]]:
    """Return the log-probabilities of each choice's tokens, from whole runs of an engine without a cache."""
    found = []
    async with await Engine.load(model_path(), LoadSettings("cpu"), num_slots=1, cache=None) as engine:
        for choice in choices:
            request = GenerateRequest([*context, *choice], max_tokens=0, logprobs=0, score_from=0)
            [scored] = [event async for event in engine.generate(request) if isinstance(event, PromptScored)]
            found.append([info.logprob for info in scored.tokens[len(context) :]])
    return found


async def test_demo_model_forks_one_context_and_scores_as_one_by_one(engine: Engine) -> None:
    context, choices = engine.tokenize(CONTEXT), [engine.tokenize(choice) for choice in CHOICES]
    scores = await score_choices(engine, context, choices, calibrate=True)
    expected = await score_alone(context, choices)
    for score, logprobs in zip(scores, expected, strict=True):
        assert [info.logprob for info in score.given.tokens] == pytest.approx(logprobs, abs=1e-4)
    for score, logprobs in zip(scores, await score_alone([0], choices), strict=True):
        assert score.alone is not None
        assert [info.logprob for info in score.alone.tokens] == pytest.approx(logprobs, abs=1e-4)
    assert max(scores, key=lambda score: score.given.total) is scores[0]
    assert cached(scores) == [0, *[len(context) - 1] * (len(choices) - 1)]
    assert total_cost(scores) == Cost(len(context) + 1 + 2 * sum(map(len, choices)), 0)


async def test_demo_model_finds_the_context_of_an_earlier_call(engine: Engine) -> None:
    context, choices = engine.tokenize(CONTEXT), [engine.tokenize(choice) for choice in CHOICES]
    before = await score_choices(engine, context, choices[:4])
    again = await score_choices(engine, context, choices)
    assert cached(again) == [len(context) - 1] * len(choices)
    assert total_cost(again) == Cost(len(context) + sum(map(len, choices)), len(context) - 1)
    assert [score.total for score in again[:4]] == pytest.approx([score.total for score in before], abs=1e-4)


@pytest.mark.parametrize(("device", "examples"), [("cpu", 12), ("auto", 4)])
async def test_what_is_scored_beside_a_choice_changes_its_score_by_rounding_alone(device: str, examples: int) -> None:
    async with await Engine.load(model_path(), LoadSettings(device), num_slots=4) as engine:
        loop, tokens = asyncio.get_running_loop(), st.integers(1, engine.info.shape.vocab_size - 1)
        choices = st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=3)

        async def totals(context: list[int], choices: list[list[int]]) -> list[ChoiceScore]:
            await engine.drop_cache()
            return list(await score_choices(engine, context, choices))

        @settings(max_examples=examples)
        @given(st.lists(tokens, min_size=1, max_size=40), st.lists(tokens, min_size=1, max_size=4), choices, choices)
        def agree(context: list[int], choice: list[int], before: list[list[int]], after: list[list[int]]) -> None:
            [alone] = asyncio.run_coroutine_threadsafe(totals(context, [choice]), loop).result()
            beside = asyncio.run_coroutine_threadsafe(totals(context, [*before, choice, *after]), loop).result()
            for one, other in zip(alone.given.tokens, beside[len(before)].given.tokens, strict=True):
                assert one.token == other.token
                assert one.logprob == pytest.approx(other.logprob, rel=0, abs=MOST_ROUNDING)

        await asyncio.to_thread(agree)


def cached(scores: Sequence[ChoiceScore]) -> list[int]:
    return sorted(score.given.cost.cached_tokens for score in scores)
