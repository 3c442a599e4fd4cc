"""Requests that mix states: several slots take in the same tokens, each drawn from the mix of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.errors import InvalidRequestError, StepError
from rnn_engine.requests import GenerateRequest, MixedState, SamplingParams, Started, StateMix
from rnn_engine.sampling.params import MixKind
from rnn_engine.scheduler import Scheduler
from rnn_engine.scheduler.mixed import mix_logits
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, assert_heard, assert_same_tokens, run_alone
from tests.support.fake_runner import FakeRunner, Tokens, random_logits
from tests.support.fault_runner import Fault, FaultRunner, Faults
from tests.support.models import tiny_shape
from tests.support.scheduler_model import SchedulerModel, Setting, run_random
from tests.support.token_masks import Residues

TOKENIZER = ByteTokenizer()
VOCAB_SIZE = TOKENIZER.size
LOGITS = random_logits(VOCAB_SIZE)
PROMPT = [1 + n % 250 for n in range(70)]  # more than two steps
SAMPLING = SamplingParams(temperature=1.0, top_p=0.95, top_k=0, presence_penalty=0.4, seed=5)


def make_clients(num_slots: int = 4, max_tokens: int = 32, num_candidates: int = 8) -> Clients:
    runner = FakeRunner(LOGITS, num_slots=num_slots, max_tokens=max_tokens, num_candidates=num_candidates)
    return Clients(runner, TOKENIZER.decode_bytes)


def ask(
    clients: Clients,
    weights: Sequence[float],
    befores: Sequence[Tokens],
    kind: MixKind = "log",
    sampling: SamplingParams = SAMPLING,
    max_tokens: int = 12,
) -> GenerateRequest:
    """Return a request whose states have taken in `befores`; an empty one has taken in no token."""
    starts = [clients.after(before) if before else None for before in befores]
    others = [MixedState(weight, start) for weight, start in zip(weights[1:], starts[1:], strict=True)]
    return GenerateRequest(
        PROMPT,
        initial_state=starts[0],
        mix=StateMix(weights[0], others, kind),
        max_tokens=max_tokens,
        stop_tokens=(),
        sampling=sampling,
        logprobs=3,
    )


def assert_as_alone(clients: Clients, key: int, befores: Sequence[Tokens]) -> None:
    expected = run_alone(clients.requests[key], LOGITS, TOKENIZER.decode_bytes, befores[0], befores[1:])
    assert_heard(clients.heard[key], expected)


kinds: st.SearchStrategy[MixKind] = st.sampled_from(get_args(MixKind))
states = st.sampled_from([(), (1,), (2, 3), (200, 100, 50)])
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([0.5, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**32),
)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_mix_is_numpys_whatever_batch_mates_slots_chunks_and_candidates_are(data: st.DataObject) -> None:
    slots = data.draw(st.integers(2, 6))
    clients = make_clients(slots, data.draw(st.integers(6, 80)), data.draw(st.sampled_from([1, 8, 257])))
    expected: dict[int, list[Tokens]] = {}
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(kinds)
        befores = data.draw(st.lists(states, min_size=1, max_size=min(slots, 3)))
        low = 0.0 if kind == "probability" else -2.0
        weights = [1.5, *(data.draw(st.floats(low, 2.0)) for _ in befores[1:])]
        request = ask(clients, weights, befores, kind, data.draw(samplings), data.draw(st.integers(0, 8)))
        expected[clients.send(request)] = befores
        clients.step()
    clients.run()
    for key, befores in expected.items():
        assert_as_alone(clients, key, befores)


@settings(max_examples=25, deadline=None)
@given(befores=st.lists(states, min_size=2, max_size=4), sampling=samplings, data=st.data())
def test_weights_1_and_0_give_what_the_first_state_gives_alone(
    befores: list[Tokens], sampling: SamplingParams, data: st.DataObject
) -> None:
    clients = make_clients()
    kind = data.draw(kinds)
    mixed = ask(clients, [1.0] + [0.0] * (len(befores) - 1), befores, kind, sampling)
    alone = clients.ask(replace(mixed, mix=None))
    assert_heard(clients.ask(mixed), alone)


@settings(max_examples=25, deadline=None)
@given(weighted=st.permutations([(1.5, ()), (-0.5, (1,)), (0.25, (2, 3))]), kind=kinds)
def test_the_order_of_the_states_does_not_matter(weighted: list[tuple[float, Tokens]], kind: MixKind) -> None:
    clients = make_clients()
    weights = [abs(weight) if kind == "probability" else weight for weight, _ in weighted]
    found = clients.ask(ask(clients, weights, [before for _, before in weighted], kind))
    sorted_weights = [abs(weight) if kind == "probability" else weight for weight in (1.5, -0.5, 0.25)]
    assert_same_tokens(found.tokens, clients.ask(ask(clients, sorted_weights, [(), (1,), (2, 3)], kind)).tokens)


def test_a_state_may_have_a_prompt_of_its_own() -> None:
    clients = make_clients()
    request = ask(clients, (1.5, -0.5), ((1,), (1,)))
    assert request.mix is not None
    other = replace(request.mix.others[0], prompt=[7, 8])
    request = replace(request, mix=replace(request.mix, others=[other]), keep_end=True)
    key = clients.send(request)
    clients.run()
    assert_as_alone(clients, key, ((1,), (1,)))


def test_a_mask_rules_the_mixed_row() -> None:
    clients = make_clients(num_candidates=1)
    request = replace(ask(clients, (1.5, -0.5), ((), (1,))), token_mask=lambda: Residues(VOCAB_SIZE))
    key = clients.send(request)
    clients.run()
    assert_as_alone(clients, key, ((), (1,)))


def test_states_whose_next_token_is_known_need_no_step_for_the_first() -> None:
    clients = make_clients()
    befores = ((1,), (2, 3))
    request = replace(ask(clients, (0.5, 0.5), befores), prompt=[], max_tokens=1)
    key = clients.send(request)
    clients.run()
    assert clients.runner.batches == []
    assert_as_alone(clients, key, befores)


def test_each_state_goes_on_from_what_the_cache_has_for_it() -> None:
    runner = FakeRunner(LOGITS, shape=tiny_shape(vocab=VOCAB_SIZE))
    cache = make_cache(runner.shape, "a model", runner, CacheConfig(host_capacity=2**24))
    clients = Clients(runner, TOKENIZER.decode_bytes, cache)
    befores = ((), (1,))
    first = clients.ask(ask(clients, (1.5, -0.5), befores))
    runner.batches.clear()
    again = clients.ask(ask(clients, (1.5, -0.5), befores))
    assert again.tokens == first.tokens
    assert {len(run.tokens) for batch in runner.batches for run in batch} == {1}
    answer = [info.token for info in first.tokens]
    runner.batches.clear()
    longer = replace(ask(clients, (1.5, -0.5), befores), prompt=[*PROMPT, *answer, 9], max_tokens=1)
    started = clients.ask(longer).events[0]
    assert isinstance(started, Started)
    assert (started.prompt_tokens, started.cached_tokens) == (len(PROMPT) + 13, len(PROMPT) + 11)
    assert sum(len(run.tokens) for batch in runner.batches for run in batch) == 2 * 2


def test_a_request_that_needs_several_slots_waits_for_them_and_nobody_passes_it() -> None:
    clients = make_clients(num_slots=2)
    single = replace(ask(clients, (1.0,), ((),)), mix=None)
    clients.send(single)
    clients.step()
    mixed = clients.send(ask(clients, (0.5, 0.5), ((), (1,))))
    later = clients.send(single)
    while not clients.heard[mixed].events:
        clients.step()
        assert not clients.heard[later].events
    clients.run()
    assert_as_alone(clients, mixed, ((), (1,)))


def test_a_request_that_waits_for_slots_of_paused_ones_is_no_work() -> None:
    clients = make_clients(num_slots=2)
    key = clients.send(replace(ask(clients, (1.0,), ((),)), mix=None))
    clients.step()
    clients.send(ask(clients, (0.5, 0.5), ((), (1,))))
    clients.scheduler.pause(key)
    assert not clients.scheduler.has_work
    clients.scheduler.cancel(key)
    assert clients.scheduler.has_work


def test_a_cancelled_request_frees_all_its_slots() -> None:
    clients = make_clients(num_slots=3)
    for _ in range(5):
        key = clients.send(ask(clients, (0.5, 0.5, 0.1), ((), (1,), (2, 3))))
        clients.step()
        assert clients.scheduler.num_live == 1
        clients.scheduler.cancel(key)
    assert clients.scheduler.num_live == 0
    clients.ask(ask(clients, (0.5, 0.5, 0.1), ((), (1,), (2, 3))))


@pytest.mark.parametrize("fault", [Fault.UNSOUND, Fault.COLLECT, Fault.SUBMIT, Fault.WRITE])
def test_what_fails_for_one_state_ends_the_request_and_frees_all_its_slots(fault: Fault) -> None:
    faults = Faults()
    inner = make_clients(num_slots=2)
    scheduler = Scheduler(FaultRunner(inner.runner, faults), TOKENIZER.decode_bytes)
    request = replace(ask(inner, (0.5, 0.5), ((), (1,))), prompt=PROMPT[:20])  # every step has rows
    for after in range(3):
        faults.arm(fault, after=after)
        scheduler.submit(after, request)
        outcomes = [delivery.outcome for _ in range(20) for delivery in scheduler.step()]
        assert sum(isinstance(outcome, StepError) for outcome in outcomes) == faults.struck[fault] <= 1
        assert (scheduler.num_live, scheduler.num_waiting) == (0, 0)
        faults.disarm()
        faults.struck.clear()
        assert scheduler.device_answers()
    scheduler.submit(9, request)
    assert all(not isinstance(delivery.outcome, StepError) for _ in range(20) for delivery in scheduler.step())


@pytest.mark.parametrize("run_ahead", [False, True])
@pytest.mark.parametrize(("cache_states", "seed"), [(None, 0), (3, 1), (40, 2)])
def test_a_long_run_loses_no_slot(cache_states: int | None, seed: int, run_ahead: bool) -> None:
    model = SchedulerModel(Setting(cache_states=cache_states, run_ahead=run_ahead, mixes=True))
    run_random(model, seed, operations=300, check_every=5)


@pytest.mark.parametrize(
    ("weights", "kind"),
    [((0.5, 0.5), "probability"), ((1.0, 0.0), "probability"), ((0.5, 0.5), "log"), ((1.5, -0.5), "log")],
)
def test_a_token_that_no_state_allows_is_not_allowed_by_the_mix(weights: Sequence[float], kind: MixKind) -> None:
    nothing = -np.inf
    rows = [np.array(row, np.float32) for row in ([1.0, nothing, 2.0], [0.5, nothing, 0.0])]
    without = [row[[0, 2]] for row in rows]
    mixed = mix_logits(rows, weights, kind)
    assert mixed[1] == nothing
    np.testing.assert_array_equal(mixed[[0, 2]], mix_logits(without, weights, kind))


def test_a_token_that_one_state_does_not_allow_has_a_share_of_the_others_in_a_mix_of_probabilities() -> None:
    rows = [np.log(np.array(row, np.float32)) for row in ([0.5, 0.25, 0.25], [1.0, 1.0, 1.0])]
    rows[1][1:] = -np.inf
    np.testing.assert_allclose(np.exp(mix_logits(rows, (1.0, 3.0), "probability")), [3.5, 0.25, 0.25], 1e-6)


def test_mixes_that_are_refused() -> None:
    clients = make_clients()
    request = ask(clients, (1.0, 1.0), ((), ()))

    def refusal(changed: GenerateRequest) -> str:
        with pytest.raises(InvalidRequestError) as error:
            changed.check(tiny_shape(vocab=VOCAB_SIZE), 10, num_slots=2)
        return str(error.value)

    def weighted(first: float, second: float, kind: MixKind = "log") -> GenerateRequest:
        return replace(request, mix=StateMix(first, [MixedState(second)], kind))

    assert "not 0" in refusal(weighted(0.0, 0.0))
    assert "from 0 to 100" in refusal(weighted(1.0, -0.5, "probability"))
    for wrong in (np.nan, np.inf, -101.0):
        assert "from -100 to 100" in refusal(weighted(1.0, wrong))
    assert "at most 2 states, one for each slot" in refusal(
        replace(request, mix=StateMix(1.0, [MixedState(1.0), MixedState(1.0)]))
    )
    assert "score_from" in refusal(replace(request, score_from=0))
    assert "prompt token 1" in refusal(replace(request, mix=StateMix(1.0, [MixedState(1.0, prompt=[1, 999])])))
    assert "prompt" in refusal(replace(request, mix=StateMix(1.0, [MixedState(1.0, prompt=[])])))
