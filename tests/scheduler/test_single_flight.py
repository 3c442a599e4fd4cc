"""Prompts that arrive together run their shared part once, and no request waits in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rnn_engine.errors import EngineClosedError, StepError
from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits
from tests.support.scheduler_books import count_leads

TOKENIZER = ByteTokenizer()
LOGITS = random_logits(TOKENIZER.size)
GREEDY = SamplingParams(temperature=0.0, seed=0)
SHARED = [1 + place % 11 for place in range(500)]
ROOM = 1 << 30


def make(num_slots: int = 8, room: int = ROOM) -> Clients:
    runner = FakeRunner(LOGITS, num_slots=num_slots, max_tokens=64)
    cache = make_cache(runner.shape, "a model", runner, CacheConfig(host_capacity=room))
    return Clients(runner, TOKENIZER.decode_bytes, cache)


def ask(prompt: list[int], max_tokens: int = 3) -> GenerateRequest:
    return GenerateRequest(prompt, max_tokens=max_tokens, stop_tokens=(), sampling=GREEDY, logprobs=1)


def tokens_run(clients: Clients) -> int:
    return sum(len(run.tokens) for batch in clients.runner.batches for run in batch)


def expect_right(clients: Clients, *keys: int) -> None:
    for key in keys:
        assert_heard(clients.heard[key], run_alone(clients.requests[key], LOGITS, TOKENIZER.decode_bytes))
    assert count_leads(clients.scheduler) == 0


@pytest.mark.parametrize("num_slots", [1, 3, 8])
def test_equal_prompts_run_once(num_slots: int) -> None:
    clients = make(num_slots)
    keys = [clients.send(ask(SHARED)) for _ in range(20)]
    clients.run()
    assert [clients.heard[key].cached_tokens for key in keys] == [0] + [500] * 19
    assert tokens_run(clients) == 500 + 20 * 2  # the last of three new tokens is never run
    expect_right(clients, *keys)


@pytest.mark.parametrize("num_slots", [1, 3, 8])
def test_what_64_prompts_share_runs_once(num_slots: int) -> None:
    clients = make(num_slots)
    keys = [clients.send(ask([*SHARED, 20 + number, 7, 7], max_tokens=1)) for number in range(64)]
    clients.run()
    assert sorted(clients.heard[key].cached_tokens for key in keys) == [0] + [500] * 63
    assert tokens_run(clients) == 500 + 64 * 3
    expect_right(clients, *keys)


def test_the_context_of_100_choices_runs_once() -> None:
    clients = make()
    keys = []
    for number in range(100):
        request = ask([*SHARED, 20 + number, 9], max_tokens=0)
        keys.append(clients.send(replace(request, score_from=len(SHARED))))
    clients.run()
    assert sorted(clients.heard[key].cached_tokens for key in keys) == [0] + [499] * 99
    assert tokens_run(clients) == 499 + 100 * 3
    expect_right(clients, *keys)


def test_contexts_of_different_choices_share_what_they_have_in_common() -> None:
    clients = make()
    for number in range(6):
        context = [*SHARED[:300], 30 + number // 3, *SHARED[:40]]
        request = ask([*context, 40 + number, 9], max_tokens=0)
        clients.send(replace(request, score_from=len(context)))
    clients.run()
    assert tokens_run(clients) == 300 + 2 * 40 + 6 * 3  # the last token of a context is run with its choice
    expect_right(clients, *range(6))


def test_one_that_waits_holds_no_slot_and_lets_others_pass() -> None:
    clients = make(num_slots=2)
    leader, waiter, other = (clients.send(ask(prompt)) for prompt in (SHARED, SHARED, [7] * 10))
    clients.step()
    assert (clients.scheduler.num_live, clients.scheduler.num_waiting) == (2, 1)
    while not clients.heard[other].ended:
        clients.step()
    assert clients.heard[leader].events == clients.heard[waiter].events == []
    clients.run()
    expect_right(clients, leader, waiter, other)


def test_one_that_arrives_later_waits_for_what_is_still_to_come() -> None:
    clients = make()
    first = clients.send(ask(SHARED))
    clients.step()
    clients.step()
    done = tokens_run(clients)
    second, third = clients.send(ask([*SHARED[:300], 77])), clients.send(ask([*SHARED[: done - 1], 78]))
    clients.run()
    assert (clients.heard[second].cached_tokens, clients.heard[third].cached_tokens) == (300, 0)
    expect_right(clients, first, second, third)


@pytest.mark.parametrize(("steps", "kept"), [(1, 0), (4, 256)])  # after four steps the leader has passed a waypoint
@pytest.mark.parametrize("end", ["leaves", "fails"])
def test_a_waiter_takes_over_where_the_leader_ends(end: str, steps: int, kept: int) -> None:
    clients = make()
    keys = [clients.send(ask(SHARED)) for _ in range(4)]
    for _ in range(steps):
        clients.step()
    if end == "leaves":
        clients.scheduler.cancel(keys[0])
    else:
        clients.runner.fail_when = lambda batch: True
        clients.step()
        clients.runner.fail_when = lambda batch: False
        assert isinstance(clients.heard[keys[0]].error, StepError)
    clients.runner.batches.clear()
    clients.run()
    assert tokens_run(clients) == 500 - kept + 3 * 2
    expect_right(clients, *keys[1:])


def test_a_heir_goes_on_from_what_the_leader_left() -> None:
    clients = make()
    keys = [clients.send(replace(ask(SHARED), checkpoint_positions=[100])) for _ in range(3)]
    while tokens_run(clients) < 150:
        clients.step()
    clients.scheduler.cancel(keys[0])
    clients.runner.batches.clear()
    clients.run()
    assert [clients.heard[key].cached_tokens for key in keys[1:]] == [100, 500]
    assert tokens_run(clients) == 400 + 2 * 2


def test_one_leader_after_the_other_may_end() -> None:
    clients = make()
    keys = [clients.send(ask(SHARED)) for _ in range(5)]
    for key in keys[:4]:
        clients.step()
        clients.scheduler.cancel(key)
    clients.run()
    expect_right(clients, keys[4])


def test_a_leader_that_can_not_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise MemoryError("no room")

    clients = make()
    monkeypatch.setattr("rnn_engine.scheduler.sequence.random_seed", refuse)
    clients.send(replace(ask(SHARED), sampling=SamplingParams(seed=None)))
    keys = [clients.send(ask(SHARED)) for _ in range(3)]
    clients.run()
    assert str(clients.heard[0].error) == "no room"
    expect_right(clients, *keys)


def test_one_that_waits_may_leave() -> None:
    clients = make()
    leader, waiter = (clients.send(ask(SHARED)) for _ in range(2))
    clients.step()
    clients.scheduler.cancel(waiter)
    assert clients.scheduler.num_waiting == 0
    clients.run()
    expect_right(clients, leader)
    assert clients.heard[waiter].events == []


def test_leaders_and_waiters_end_together_where_all_end() -> None:
    clients = make()
    keys = [clients.send(ask(SHARED)) for _ in range(3)]
    clients.step()
    clients.take(clients.scheduler.abort(lambda: EngineClosedError("bye")))
    assert [str(clients.heard[key].error) for key in keys] == ["bye"] * 3
    assert count_leads(clients.scheduler) == 0


def test_prompts_are_not_run_one_after_the_other_where_nothing_can_be_kept() -> None:
    clients = make(room=0)
    keys = [clients.send(ask(SHARED)) for _ in range(6)]
    clients.run()
    assert [clients.heard[key].cached_tokens for key in keys] == [0] * 6
    prefill = [batch for batch in clients.runner.batches if any(len(run.tokens) > 1 for run in batch)]
    together = [sum(len(run.tokens) > 1 for run in batch) for batch in prefill]
    assert (together[0], max(together)) == (1, 5)  # they wait once, and no more
    expect_right(clients, *keys)


def test_those_that_start_from_different_states_do_not_wait_for_each_other() -> None:
    clients = make()
    starts = [None, clients.after((3,)), clients.after((4,))]
    for start in starts:
        clients.send(replace(ask(SHARED), initial_state=start))
    clients.step()
    assert clients.scheduler.num_live == 3
