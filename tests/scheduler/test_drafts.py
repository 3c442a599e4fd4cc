"""Drafts: answers, cached states and the state at the end are the same as with one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.errors import StepError, TimeLimitError
from rnn_engine.requests import Finished, GenerateRequest, MixedState, SamplingParams, StateMix
from rnn_engine.scheduler import NO_DRAFTS, DraftSettings
from rnn_engine.types import F32, Batch
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, Tokens, table_logits
from tests.support.models import tiny_shape
from tests.support.token_masks import Forms, Residues

TOKEN_BYTES = (b"", b"a", b"b", b"ab", b"\n", b"\xc3", b"\xa9", b"\xff", b"c", b"d", b"ca", b"bd")
VOCAB_SIZE = len(TOKEN_BYTES)
NUM_SLOTS, NUM_SPARE = 3, 2
DRAFTS = DraftSettings(6, range(NUM_SLOTS, NUM_SLOTS + NUM_SPARE))
TABLE = table_logits(VOCAB_SIZE, spread=4.0)
LATE = TimeLimitError("late")


def repeating(tokens: Tokens) -> F32:
    """Return a row that depends only on the last two tokens, so that texts repeat themselves."""
    return TABLE(tokens[-2:])


def make_runner(num_slots: int = NUM_SLOTS + NUM_SPARE) -> FakeRunner:
    return FakeRunner(
        repeating, shape=tiny_shape(vocab=VOCAB_SIZE), num_slots=num_slots, max_tokens=24, num_candidates=6
    )


def make_cache_of(runner: FakeRunner) -> StateCache:
    num_bytes = 100 * (runner.shape.state_bytes + 4 * VOCAB_SIZE)
    return make_cache(runner.shape, "a model", runner, CacheConfig(host_capacity=num_bytes))


def make_clients(drafts: DraftSettings = DRAFTS, *, cached: bool = False) -> Clients:
    runner = make_runner(NUM_SLOTS + len(drafts.spare_slots))
    return Clients(runner, TOKEN_BYTES.__getitem__, make_cache_of(runner) if cached else None, drafts=drafts)


def num_drafted(clients: Clients) -> tuple[int, int]:
    counters = clients.scheduler.counters
    return counters.draft_tokens, counters.accepted_tokens


tokens = st.integers(1, VOCAB_SIZE - 1)
requests = st.builds(
    GenerateRequest,
    prompt=st.lists(tokens, min_size=1, max_size=12),
    max_tokens=st.integers(0, 40),
    min_tokens=st.sampled_from([0, 0, 20]),
    stop=st.lists(st.sampled_from([b"abc", b"dd", "é".encode(), b"ca\n"]), max_size=2),
    stop_tokens=st.lists(tokens, max_size=1),
    sampling=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.5, 1.0]),
        top_p=st.sampled_from([0.5, 1.0]),
        min_p=st.sampled_from([0.0, 0.0, 0.1]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
        repeat_penalty=st.sampled_from([1.0, 1.1]),
        logit_bias=st.sampled_from([{}, {2: 3.0}]),
        seed=st.integers(0, 2**64 - 1),
    ),
    logprobs=st.sampled_from([None, None, 3]),
    keep_end=st.booleans(),
    speculate=st.sampled_from([None, None, 0, 2]),
)
masked = requests.map(lambda one: replace(one, stop_tokens=(), token_mask=lambda: Residues(VOCAB_SIZE)))
forms = requests.map(lambda one: replace(one, token_mask=lambda: Forms(VOCAB_SIZE)))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, and the steps at which it arrives, leaves or is cut, or its reader pauses."""

    request: GenerateRequest
    step: int = 0
    leaves: int | None = None
    is_cut: bool = False
    pauses: frozenset[int] = field(default_factory=frozenset)


arrivals = st.builds(
    Arrival,
    requests | requests | masked | forms,
    step=st.integers(0, 60),
    leaves=st.none() | st.integers(1, 40),
    is_cut=st.booleans(),
    pauses=st.frozensets(st.integers(0, 40), max_size=3),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(arrivals, min_size=1, max_size=5), st.booleans(), st.none() | st.integers(30, 60))
def test_everybody_hears_what_they_would_hear_alone(comings: list[Arrival], cached: bool, again: int | None) -> None:
    clients = make_clients(cached=cached)
    if again is not None:  # some of the same prompts and sampling, so that texts come a second time
        comings = [*comings, *(replace(one, step=again, leaves=None) for one in comings)]
    keys: dict[int, Arrival] = {}
    last = max(max(one.step, one.leaves or 0, *one.pauses, 0) for one in comings)
    step = 0
    while step <= last + 1 or clients.scheduler.has_work:
        for one in comings:
            if one.step == step:
                keys[clients.send(one.request)] = one
        for key, one in keys.items():
            is_heard = not clients.heard[key].ended
            clients.scheduler.pause(key, is_heard and step in one.pauses)
            if is_heard and one.leaves == step:
                if one.is_cut:
                    clients.take(clients.scheduler.expire(key, LATE))
                else:
                    clients.scheduler.cancel(key)
        clients.step()
        step += 1
    for key, one in keys.items():
        heard = clients.heard[key]
        expected = run_alone(one.request, repeating, TOKEN_BYTES.__getitem__)
        if heard.error is not None:
            assert heard.error is LATE
        elif one.leaves is None or (heard.ended and heard.finished.reason == "stop"):
            assert_heard(heard, expected)
        else:  # a beginning; `Clients` has checked the state at its end
            assert [info.token for info in heard.tokens] == [info.token for info in expected.tokens][
                : len(heard.tokens)
            ]
    assert clients.scheduler.num_live == 0
    assert len(clients.scheduler._drafts.spare) == NUM_SPARE


@settings(max_examples=8, deadline=None)
@given(st.lists(requests | forms, min_size=1, max_size=3), st.integers(1, 2))
def test_the_same_states_are_kept(asked: list[GenerateRequest], times: int) -> None:
    kept = []
    for drafts in (NO_DRAFTS, DRAFTS):
        clients = make_clients(drafts, cached=True)
        for one in times * asked:
            clients.ask(one)
        cache = clients.cache
        assert cache is not None
        kept.append(sorted((one.known_place().tokens(), one.kind) for one in cache.checkpoints() if one.resumable))
    assert kept[0] == kept[1]


def request(
    prompt: Tokens = (1, 2, 3),
    max_tokens: int = 60,
    temperature: float = 0.0,
    **fields: Any,  # noqa: ANN401 - those of a request
) -> GenerateRequest:
    sampling = SamplingParams(temperature=temperature, seed=1)
    return replace(GenerateRequest(prompt, max_tokens=max_tokens, stop_tokens=(), sampling=sampling), **fields)


def test_a_text_that_repeats_itself_takes_few_steps() -> None:
    clients = make_clients()
    clients.send(request())
    steps = clients.run()
    drafted, accepted = num_drafted(clients)
    assert accepted > 0.9 * drafted > 20
    assert steps < 35


def test_the_time_of_a_step_is_split_among_the_tokens_that_it_gives() -> None:
    clients = make_clients()
    clients.send(request())
    clients.run()
    counters = clients.scheduler.counters
    assert counters.accepted_tokens > 0
    assert counters.inter_token_seconds.count == counters.generated_tokens - 1


def test_what_is_not_run_is_not_drafted() -> None:
    clients = make_clients()
    clients.send(request(max_tokens=57))
    clients.run()
    drafted, accepted = num_drafted(clients)
    assert sum(len(run.tokens) for batch in clients.runner.batches for run in batch) <= 3 + 57 + 2 * (
        drafted - accepted
    )


@pytest.mark.parametrize("without", [{"speculate": 0}, {"token_mask": lambda: Residues(VOCAB_SIZE), "logprobs": 2}])
def test_some_requests_draft_nothing(without: dict[str, Any]) -> None:
    clients = make_clients()
    clients.ask(request(**without))
    assert num_drafted(clients) == (0, 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_of_a_grammar_is_drafted_with_what_is_forced_in_it(temperature: float) -> None:
    asked = request(max_tokens=60, token_mask=lambda: Forms(VOCAB_SIZE, end=9), temperature=temperature)
    clients = make_clients(cached=True)
    clients.runner.logits = TABLE
    first = clients.send(asked)
    steps = clients.run()
    before, num_runs = num_drafted(clients), len(clients.runner.batches)
    again = clients.send(asked)
    assert clients.run() < steps / 2
    for key in (first, again):
        assert_heard(clients.heard[key], run_alone(asked, TABLE, TOKEN_BYTES.__getitem__))
    drafted, accepted = np.subtract(num_drafted(clients), before)
    assert accepted == drafted > 15
    assert any(run.masks is not None and run.rows > 1 for batch in clients.runner.batches[num_runs:] for run in batch)


def test_a_draft_is_run_beside_the_prompt_of_another_request() -> None:
    clients = make_clients()
    asked = request(max_tokens=100)
    key = clients.send(asked)
    while num_drafted(clients) == (0, 0):
        clients.step()
    first, long = len(clients.runner.batches), request(tuple(range(1, 12)) * 20, max_tokens=1)
    other = clients.send(long)
    clients.run()
    beside = [batch for batch in clients.runner.batches[first:] if {run.slot for run in batch} == {0, 1}]
    assert any(run.rows > 1 for batch in beside for run in batch)
    assert all(run.rows == 1 or run.slot == 0 for batch in beside for run in batch if run.rows)
    assert_heard(clients.heard[key], run_alone(asked, repeating, TOKEN_BYTES.__getitem__))
    assert_heard(clients.heard[other], run_alone(long, repeating, TOKEN_BYTES.__getitem__))


def test_a_step_that_other_requests_fill_awaits_no_draft() -> None:
    runner = replace(make_runner(), max_rows=3, max_draws=4)
    clients = Clients(runner, TOKEN_BYTES.__getitem__, drafts=DRAFTS, run_ahead=True)
    asked = request(max_tokens=100)
    key = clients.send(asked)
    while num_drafted(clients) == (0, 0):
        clients.step()
    for _ in range(2):
        clients.send(request(tuple(range(1, 12)) * 20, max_tokens=1))
    clients.run()
    assert_heard(clients.heard[key], run_alone(asked, repeating, TOKEN_BYTES.__getitem__))


def test_a_mix_drafts_nothing() -> None:
    clients = make_clients()
    clients.ask(request(mix=StateMix(1.0, [MixedState(1.0)])))
    assert num_drafted(clients) == (0, 0)


def test_a_request_bounds_its_drafts() -> None:
    clients = make_clients()
    clients.ask(request(speculate=2))
    assert max(run.rows for batch in clients.runner.batches for run in batch) == 3


def poisoned_beyond(right: Tokens) -> Callable[[Tokens], F32]:
    """Return the logits of a model that has no finite ones after any other tokens than the first of `right`."""

    def logits(tokens: Tokens) -> F32:
        return repeating(tokens) if tokens == right[: len(tokens)] else np.full(VOCAB_SIZE, np.nan, np.float32)

    return logits


def test_numbers_that_are_not_finite_behind_a_wrong_token_harm_nobody() -> None:
    asked = request(temperature=0.7, max_tokens=100)
    heard = make_clients().ask(asked)
    clients = make_clients()
    clients.runner.logits = poisoned_beyond((*asked.prompt, *(info.token for info in heard.tokens)))
    again = clients.ask(asked)
    assert again.error is None
    assert (again.text, again.tokens) == (heard.text, heard.tokens)
    drafted, accepted = num_drafted(clients)
    assert clients.scheduler.counters.unsound_runs == 0
    assert drafted > accepted


def test_a_draft_that_can_not_be_undone_ends_its_own_request_alone() -> None:
    """Numbers that are not finite, and the copy of the state back fails."""
    asked = request(temperature=0.7, max_tokens=100)
    heard = make_clients().ask(asked)
    clients = make_clients()
    copy, is_lost = clients.runner.copy_state, False

    def lose(source: int, target: int) -> None:
        nonlocal is_lost
        if source >= NUM_SLOTS:
            is_lost = True
            raise StepError("the device is lost")
        copy(source, target)

    clients.runner.logits = poisoned_beyond((*asked.prompt, *(info.token for info in heard.tokens)))
    clients.runner.copy_state = lose  # type: ignore[method-assign]
    again = clients.ask(asked)
    assert is_lost
    assert isinstance(again.error, StepError)
    clients.runner.logits = repeating
    clients.runner.copy_state = copy  # type: ignore[method-assign]
    assert isinstance(clients.ask(asked).events[-1], Finished)


def test_a_device_that_copies_no_state_drafts_nothing() -> None:
    clients = make_clients()

    def refuse(source: int, target: int) -> None:
        raise RuntimeError(f"no copy of {source} to {target}")

    clients.runner.copy_state = refuse  # type: ignore[method-assign]
    heard = clients.ask(request())
    assert_heard(heard, run_alone(request(), repeating, TOKEN_BYTES.__getitem__))
    assert num_drafted(clients) == (0, 0)


def test_a_failed_step_gives_its_spare_slots_back() -> None:
    clients = make_clients()
    clients.runner.fail_when = lambda batch: any(run.rows > 1 for run in batch)
    assert clients.ask(request()).error is not None
    clients.runner.fail_when = lambda batch: False
    for _ in range(NUM_SPARE + 1):
        assert isinstance(clients.ask(request()).events[-1], Finished)
    assert num_drafted(clients)[1] > 0


def test_no_more_drafts_than_spare_slots_and_tokens_of_a_step() -> None:
    clients = make_clients()
    seen: list[Batch] = []
    clients.runner.on_step = seen.append
    for first in (1, 2, 3):
        clients.send(request((first, 2, 3), max_tokens=100))
    clients.run()
    assert max(sum(run.rows > 1 for run in batch) for batch in seen) == NUM_SPARE


def hear_again(second: GenerateRequest, first: GenerateRequest | None = None) -> tuple[int, int]:
    """Ask for a text without repeats twice; return the numbers of drafted tokens and of drawn ones among these."""
    clients = make_clients(cached=True)
    clients.runner.logits = TABLE
    clients.ask(second if first is None else first)
    assert num_drafted(clients) == (0, 0)
    heard = clients.ask(second)
    assert_heard(heard, run_alone(second, TABLE, TOKEN_BYTES.__getitem__))
    return num_drafted(clients)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_that_was_there_before_is_drafted(temperature: float) -> None:
    asked = request(temperature=temperature, max_tokens=40)
    drafted, accepted = hear_again(asked)
    assert drafted == accepted > 30


def test_a_text_that_leaves_the_earlier_one_is_not_drafted_on() -> None:
    asked = request(max_tokens=40)
    drafted, accepted = hear_again(replace(asked, sampling=SamplingParams(temperature=3.0, seed=9)), asked)
    assert 6 < accepted < drafted == 12


def test_a_text_of_another_scope_is_not_drafted() -> None:
    asked = request(max_tokens=40, cache_scope="ann")
    assert hear_again(replace(asked, cache_scope="ben"), asked) == (0, 0)
    assert hear_again(replace(asked, cache_scope="ann/1"), asked) == (0, 0)
    assert hear_again(asked, asked)[1] > 30


def test_a_text_after_another_state_is_not_drafted() -> None:
    clients = make_clients(cached=True)
    clients.runner.logits = TABLE
    asked = request(max_tokens=40)
    clients.ask(asked)
    clients.ask(replace(asked, initial_state=clients.after((5,))))
    assert num_drafted(clients) == (0, 0)


def test_a_cache_that_fails_gives_no_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[int]:
        raise RuntimeError("no paths")

    monkeypatch.setattr(StateCache, "continuation", fail)
    assert hear_again(request(max_tokens=40)) == (0, 0)
