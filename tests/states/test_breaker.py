"""The circuit breaker in front of a shared store."""

from __future__ import annotations

from rnn_engine_states.shared.client import CircuitBreaker
from tests.support.shared_caches import Clock


def test_it_opens_after_failures_in_a_row_and_tries_one_operation_after_each_pause() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, most_failures=2, first_pause=1.0, longest_pause=3.0)
    breaker.note_failure()
    breaker.note_success()
    breaker.note_failure()
    assert breaker.allow()
    breaker.note_failure()
    assert [breaker.is_open, breaker.allow()] == [True, False]
    assert breaker.openings == 1
    for pause in (1.0, 2.0, 3.0, 3.0):
        clock.now += pause - 0.01
        assert breaker.refuses
        assert not breaker.allow()
        clock.now += 0.01
        assert [breaker.refuses, breaker.allow(), breaker.allow()] == [False, True, False]  # one at a time
        breaker.note_failure()
    assert breaker.openings == 1
    clock.now += 3.0
    assert breaker.allow()
    breaker.note_success()
    assert [breaker.is_open, breaker.allow(), breaker.allow()] == [False, True, True]
    breaker.note_failure()
    assert breaker.allow()


def test_a_try_whose_outcome_is_never_noted_is_followed_by_another() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, most_failures=1, first_pause=1.0)
    breaker.note_failure()
    clock.now = 1.0
    assert breaker.allow()
    clock.now = 2.0
    assert breaker.allow()


def test_operations_that_ran_when_it_opened_do_not_make_the_pause_longer() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, most_failures=1, first_pause=1.0)
    for _ in range(8):  # all at once, as when a store is killed
        breaker.note_failure()
    clock.now = 1.0
    assert breaker.allow()
    breaker.note_failure()
    breaker.note_failure()
    clock.now = 3.0
    assert breaker.allow()
