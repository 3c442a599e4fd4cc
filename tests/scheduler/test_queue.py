"""The order of requests that wait for a slot."""

from __future__ import annotations

from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.checkpoints import PromptPrefix, SingleFlight
from rnn_engine.scheduler.queue import OLDEST_EVERY, Queue, Waiting
from rnn_engine_states.tokens import pack

PREFIX = PromptPrefix("root", pack(range(100)))


def waiting(key: int, priority: int) -> Waiting:
    return Waiting(key, GenerateRequest([1], priority=priority), PREFIX)


def make(*priorities: int) -> Queue:
    queue = Queue()
    for key, priority in enumerate(priorities):
        queue.add(waiting(key, priority))
    return queue


def take(queue: Queue) -> int:
    first = next(queue.ready())
    queue.take(first)
    return first.key


def test_the_greatest_priority_comes_first_and_equal_ones_by_arrival() -> None:
    queue = make(0, 5, -3, 5, 0)
    assert [one.key for one in queue.ready()] == [1, 3, 0, 4, 2]


def test_one_whose_client_left_is_gone_at_once() -> None:
    queue = make(0, 5, 0)
    queue.discard(1)
    queue.discard(1)
    assert (len(queue), queue.keys) == (2, [0, 2])
    assert [one.key for one in queue.ready()] == [0, 2]


def test_one_that_is_passed_over_comes_in_the_end_whatever_keeps_coming() -> None:
    queue = make(*[-1] * 5)
    taken = []
    for key in range(100, 140):
        queue.add(waiting(key, priority=1))
        taken.append(take(queue))
    places = [taken.index(key) for key in range(5)]
    assert places == [OLDEST_EVERY * (number + 1) - 1 for number in range(5)]


def test_one_that_waits_for_another_is_passed_over_until_it_need_not() -> None:
    flights = SingleFlight()
    plan = flights.lead(PREFIX, 0)
    queue = make(9, 0)
    first = next(queue.ready())
    assert isinstance(first, Waiting)
    first.wait = flights.find(PREFIX, 0)
    assert [one.key for one in queue.ready()] == [1]
    plan.close()
    assert [one.key for one in queue.ready()] == [0, 1]


def test_those_that_are_taken_meanwhile_are_not_offered_again() -> None:
    queue = make(*range(20))
    offered = []
    for one in queue.ready():
        offered.append(one.key)
        if one.key % 2:
            queue.take(one)
    assert sorted(offered) == list(range(20))
    assert queue.keys == list(range(0, 20, 2))
