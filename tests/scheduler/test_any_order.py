"""Requests that join, leave and fail in any order: each gets the same answer as alone, and no slot is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rnn_engine.requests import GenerateRequest, SamplingParams
from tests.support.scheduler_model import CACHE_METHODS, PARTS, STOPS, VOCAB_SIZE, SchedulerModel, Setting, run_random

tokens = st.integers(0, VOCAB_SIZE - 1)
prompts = st.builds(
    lambda parts, tail: [token for part in parts for token in part] + tail,
    st.lists(st.sampled_from(PARTS), max_size=2),
    st.lists(tokens, min_size=1, max_size=12),
)


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    prompt = draw(prompts)
    positions = st.integers(0, len(prompt))
    return GenerateRequest(
        prompt=prompt,
        turn_positions=draw(st.lists(positions, max_size=2)),
        checkpoint_positions=draw(st.lists(positions, max_size=2)),
        max_tokens=draw(st.integers(0, 12)),
        stop=draw(st.lists(st.sampled_from(STOPS), max_size=2)),
        stop_tokens=draw(st.lists(tokens, max_size=1)),
        sampling=SamplingParams(
            temperature=draw(st.sampled_from([0.0, 1.0, 2.0])),
            top_p=draw(st.sampled_from([0.5, 1.0])),
            presence_penalty=draw(st.sampled_from([0.0, 1.0])),
            repeat_penalty=draw(st.sampled_from([1.0, 1.5])),
            repeat_last_n=draw(st.sampled_from([-1, 2])),
            frequency_penalty=draw(st.sampled_from([0.0, 0.5])),
            logit_bias=draw(st.sampled_from([{}, {2: 3.0}])),
            min_p=draw(st.sampled_from([0.0, 0.0, 0.1])),
            seed=draw(st.integers(0, 2**64 - 1)),
        ),
        logprobs=draw(st.sampled_from([None, 0, 5])),
        score_from=draw(st.none() | st.integers(0, len(prompt) - 1)),
        penalised_prompt=draw(st.lists(tokens, max_size=20)),
        keep_end=draw(st.booleans()),
        priority=draw(st.integers(-2, 2)),
    )


class AnyOrder(RuleBasedStateMachine):
    """A state machine that drives a scheduler, with checks at every step and at the end."""

    @initialize(
        setting=st.builds(
            Setting,
            slots=st.integers(1, 4),
            tokens=st.integers(1, 24),
            rows=st.integers(1, 8),
            candidates=st.integers(1, 8),
            cache_states=st.sampled_from([None, 0, 3, 100]),
            run_ahead=st.booleans(),
            draws=st.sampled_from([0, 1, 3, 8]),
            clients=st.sampled_from([1, 2, 4]),
            least_tokens=st.sampled_from([0, 1, 5]),
        )
    )
    def start(self, setting: Setting) -> None:
        self.model = SchedulerModel(setting)

    @rule(request=requests(), before=st.sampled_from([(), (), (1,), (2, 1)]), logits_known=st.booleans())
    def send(self, request: GenerateRequest, before: tuple[int, ...], logits_known: bool) -> None:
        self.model.send(request, before, logits_known=logits_known)

    @rule(request=requests(), copies=st.integers(2, 5))
    def send_equal_ones(self, request: GenerateRequest, copies: int) -> None:
        for _ in range(copies):
            self.model.send(request)

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.model.leave(data.draw(st.sampled_from(sorted(self.model.open))))

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        self.model.pause(data.draw(st.sampled_from(sorted(self.model.open))))

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.model.step()

    @rule()
    def fail(self) -> None:
        self.model.fail()

    @precondition(lambda self: self.model.cache is not None)
    @rule(method=st.sampled_from(CACHE_METHODS))
    def step_without(self, method: str) -> None:
        self.model.step_without(method)

    @rule()
    def abort(self) -> None:
        self.model.abort()

    @invariant()
    def all_tell_one_story(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.end()


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestAnyOrder = AnyOrder.TestCase


@pytest.mark.parametrize(("run_ahead", "draws"), [(False, 0), (True, 0), (True, 1), (True, 8)])
@pytest.mark.parametrize(("cache_states", "seed"), [(None, 0), (3, 1), (40, 2)])
def test_a_long_run_loses_nothing(cache_states: int | None, seed: int, run_ahead: bool, draws: int) -> None:
    model = SchedulerModel(Setting(cache_states=cache_states, run_ahead=run_ahead, draws=draws))
    run_random(model, seed, operations=400, check_every=5)
    assert (model.steps_ahead > 20) == run_ahead


@pytest.mark.parametrize("draft_tokens", [0, 4])
@pytest.mark.parametrize(("cache_states", "draws", "seed"), [(None, 0, 3), (40, 1, 4)])
def test_a_long_run_on_several_devices_loses_nothing(
    cache_states: int | None, draws: int, seed: int, draft_tokens: int
) -> None:
    mixes = draft_tokens == 0
    model = SchedulerModel(
        Setting(cache_states=cache_states, draws=draws, draft_tokens=draft_tokens, mixes=mixes, steps_at_once=2)
    )
    run_random(model, seed, operations=400, check_every=5)
    assert model.steps_ahead > 20


@pytest.mark.parametrize(
    ("run_ahead", "draws", "draft_tokens", "mixes"),
    [
        (False, 0, 0, False),
        (True, 0, 0, False),
        (True, 8, 0, False),
        (True, 0, 4, False),
        (True, 3, 4, False),
        (False, 0, 0, True),
        (True, 8, 0, True),
    ],
)
@pytest.mark.parametrize(("cache_states", "seed"), [(None, 0), (40, 1)])
def test_requests_that_are_suspended_hear_what_they_would_alone(
    cache_states: int | None, seed: int, run_ahead: bool, draws: int, draft_tokens: int, mixes: bool
) -> None:
    setting = Setting(
        cache_states=cache_states,
        run_ahead=run_ahead,
        draws=draws,
        draft_tokens=draft_tokens,
        mixes=mixes,
        slots=2,
        clients=3,
        least_tokens=1,
    )
    model = SchedulerModel(setting)
    run_random(model, seed, operations=500, check_every=5)
    assert model.clients.scheduler.counters.suspensions > 10


@pytest.mark.parametrize(("places", "draws", "draft_tokens", "clients"), [(1, 0, 0, 1), (2, 3, 0, 1), (3, 3, 8, 3)])
def test_requests_with_loras_get_the_same_as_alone(places: int, draws: int, draft_tokens: int, clients: int) -> None:
    setting = Setting(loras=places, draws=draws, draft_tokens=draft_tokens, clients=clients, run_ahead=draws > 0)
    run_random(SchedulerModel(setting), seed=places, operations=500, check_every=5)
