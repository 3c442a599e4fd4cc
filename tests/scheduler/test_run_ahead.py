"""Steps submitted before the one in flight is done: only if that helps, and without delaying any request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rnn_engine.errors import EngineClosedError, StepError
from rnn_engine.requests import GenerateRequest, SamplingParams, Started
from rnn_engine_states.cache.cache import make_cache
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, table_logits

TOKENIZER = ByteTokenizer()
LOGITS = table_logits(TOKENIZER.size)
CHUNK = 32


def make(num_slots: int = 4, *, run_ahead: bool = True, cached: bool = False) -> Clients:
    runner = FakeRunner(LOGITS, num_slots=num_slots, max_tokens=CHUNK)
    cache = make_cache(runner.shape, "a model", runner) if cached else None
    return Clients(runner, TOKENIZER.decode_bytes, cache, run_ahead)


def ask(length: int, max_tokens: int = 3, first: int = 1) -> GenerateRequest:
    prompt = [first + place % 7 for place in range(length)]
    return GenerateRequest(prompt, max_tokens=max_tokens, stop_tokens=(), sampling=SamplingParams(seed=1))


def in_flight(clients: Clients, until: Callable[[], bool]) -> list[int]:
    """Step until a condition holds; return the number of steps in flight after each."""
    counts = []
    while not until():
        clients.step()
        counts.append(clients.runner.num_in_flight)
    return counts


def expect_right(clients: Clients, *keys: int) -> None:
    for key in keys:
        assert_heard(clients.heard[key], run_alone(clients.requests[key], LOGITS, TOKENIZER.decode_bytes))


def warm_up(clients: Clients) -> None:
    """Let the scheduler measure the time of a chunk's step."""
    clients.ask(ask(2 * CHUNK, max_tokens=0, first=100))
    clients.runner.batches.clear()


def test_the_next_chunk_of_a_lone_prompt_is_submitted_before_the_last_one_is_done() -> None:
    clients = make()
    warm_up(clients)
    key = clients.send(ask(5 * CHUNK))
    assert in_flight(clients, lambda: clients.heard[key].ended) == [1, 1, 1, 1, 1, 0, 0, 0]
    assert [len(run.tokens) for [run] in clients.runner.batches] == [CHUNK] * 5 + [1, 1]
    expect_right(clients, key)


def test_no_step_is_submitted_ahead_where_steps_are_long_or_their_time_is_unknown() -> None:
    clients = make(run_ahead=False)
    warm_up(clients)
    key = clients.send(ask(5 * CHUNK))
    assert set(in_flight(clients, lambda: clients.heard[key].ended)) == {0}
    new = make()
    new.send(ask(5 * CHUNK))
    new.step()
    assert new.runner.num_in_flight == 0


def test_decode_never_waits_behind_a_chunk() -> None:
    clients = make()
    warm_up(clients)
    talker = clients.send(ask(3, max_tokens=8))
    clients.step()
    clients.send(ask(20 * CHUNK, first=9))
    for told in range(2, 9):
        clients.step()
        assert clients.runner.num_in_flight == 0
        assert len(clients.heard[talker].tokens) == told


def test_one_that_arrives_beside_a_long_prompt_waits_for_two_chunks_at_most() -> None:
    clients = make()
    warm_up(clients)
    long = clients.send(ask(4000, max_tokens=1))
    for _ in range(7):
        clients.step()
    submitted = len(clients.runner.batches)
    late = clients.send(ask(5, max_tokens=1, first=50))
    while not clients.heard[late].ended:
        clients.step()
    slots = [[run.slot for run in batch] for batch in clients.runner.batches]
    assert slots[submitted - 1 : submitted + 1] == [[0], [0, 1]]  # its step comes right after the one in flight
    clients.run()
    expect_right(clients, long, late)


def test_commands_are_obeyed_between_two_submits() -> None:
    clients = make()
    warm_up(clients)
    clients.send(ask(20 * CHUNK))
    for expected in (1, 2, 3):
        clients.step()
        assert len(clients.runner.batches) == expected


def test_a_cancelled_request_frees_its_slot_when_its_step_in_flight_is_done() -> None:
    clients = make(num_slots=1)
    warm_up(clients)
    leaver = clients.send(ask(20 * CHUNK))
    clients.step()
    clients.step()
    assert clients.runner.num_in_flight == 1
    follower = clients.send(ask(40, first=50))
    clients.scheduler.cancel(leaver)
    assert clients.scheduler.num_live == 0
    clients.step()  # collects the step in flight
    clients.step()
    assert clients.scheduler.num_live == 1
    clients.run()
    assert clients.heard[leaver].events == []
    expect_right(clients, follower)


def test_a_step_in_flight_is_collected_though_nobody_wants_its_outcome() -> None:
    clients = make()
    warm_up(clients)
    leaver = clients.send(ask(20 * CHUNK))
    clients.step()
    clients.scheduler.cancel(leaver)
    assert clients.scheduler.has_work
    clients.run()
    assert clients.runner.num_in_flight == 0
    assert clients.ask(ask(3)).ended


def test_a_failed_step_ends_its_requests_and_no_result_of_the_one_behind_it_is_used() -> None:
    clients = make()
    warm_up(clients)
    first = clients.send(ask(20 * CHUNK))
    clients.step()
    clients.runner.fail_when = lambda batch: True
    clients.step()
    clients.runner.fail_when = lambda batch: False
    other = clients.send(ask(40, first=50))
    clients.run()
    assert isinstance(clients.heard[first].error, StepError)
    assert clients.heard[first].events == []
    expect_right(clients, other)


def test_a_step_that_is_not_submitted_fails_its_requests_and_the_one_before_it_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients = make()
    warm_up(clients)
    key = clients.send(ask(20 * CHUNK))
    clients.step()
    with monkeypatch.context() as patch:
        patch.setattr(clients.runner, "submit", lambda batch: 1 / 0)
        clients.step()
    assert "division by zero" in str(clients.heard[key].error)
    assert clients.runner.num_in_flight == 0
    assert clients.ask(ask(3)).error is None


def test_the_end_of_all_waits_for_what_is_in_flight() -> None:
    clients = make()
    warm_up(clients)
    key = clients.send(ask(20 * CHUNK))
    clients.step()
    clients.take(clients.scheduler.abort(lambda: EngineClosedError("bye")))
    assert isinstance(clients.heard[key].error, EngineClosedError)
    assert clients.runner.num_in_flight == 0


def test_a_prompt_does_not_run_ahead_of_a_state_that_is_yet_to_be_kept() -> None:
    clients = make(cached=True)
    warm_up(clients)
    request = ask(6 * CHUNK, max_tokens=0)
    marked = GenerateRequest(request.prompt, checkpoint_positions=[50, 51, 100], max_tokens=0)
    assert clients.ask(marked).ended
    for position in (50, 51, 100):
        heard = clients.ask(
            GenerateRequest([*request.prompt[:position], 99], max_tokens=3, sampling=SamplingParams(seed=2))
        )
        started = heard.events[0]
        assert isinstance(started, Started)
        assert started.cached_tokens == position
        expect_right(clients, clients.num_sent - 1)


def test_one_that_arrives_later_waits_for_what_no_submitted_step_has_reached() -> None:
    clients = make(cached=True)
    warm_up(clients)
    first = clients.send(ask(10 * CHUNK, max_tokens=1))
    clients.step()
    clients.step()
    submitted = sum(len(run.tokens) for batch in clients.runner.batches for run in batch)
    assert (submitted, clients.runner.num_in_flight) == (2 * CHUNK, 1)
    prompt = clients.requests[first].prompt
    others = [
        clients.send(GenerateRequest([*prompt[:position], 99], max_tokens=1, sampling=SamplingParams(seed=3)))
        for position in (submitted - 1, submitted + 1, 5 * CHUNK)
    ]
    clients.run()
    cached = [event.cached_tokens for key in others if isinstance(event := clients.heard[key].events[0], Started)]
    assert cached == [0, submitted + 1, 5 * CHUNK]
    expect_right(clients, first, *others)
