"""Threads that take work at less cost than an executor: their number, and their end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rnn_engine.scheduler.mask_threads import Threads

NAME = "threads of a test"


def own() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(2, NAME)
    yield threads
    running = own()
    threads.close()
    for thread in running:
        thread.join(20)
    assert own() == []


def test_work_that_takes_long_holds_up_no_other_while_threads_are_left(threads: Threads) -> None:
    gate, is_done = threading.Event(), threading.Event()
    threads.hand_over(lambda: gate.wait(20))
    threads.hand_over(is_done.set)
    assert is_done.wait(20)
    assert len(own()) == 2
    gate.set()


def test_there_are_never_more_than_so_many(threads: Threads) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        begun.release()
        gate.wait(20)

    for _ in range(5):
        threads.hand_over(work)
    assert begun.acquire(timeout=20)
    assert begun.acquire(timeout=20)
    assert len(own()) == 2
    gate.set()
    for _ in range(5):
        assert threads.wait(20)
    assert not threads.wait(0.0)


def test_one_is_used_again_once_its_work_is_known_to_be_done(threads: Threads) -> None:
    done_by: list[int] = []
    for _ in range(4):
        threads.hand_over(lambda: done_by.append(threading.get_ident()))
        assert threads.wait(20)
    assert len(set(done_by)) == 1
    assert done_by[0] != threading.get_ident()


def test_a_note_from_elsewhere_ends_a_wait_and_makes_no_thread_idle(threads: Threads) -> None:
    gate = threading.Event()
    threads.hand_over(lambda: gate.wait(20))
    threads.note()
    assert threads.wait(20)
    is_done = threading.Event()
    threads.hand_over(is_done.set)
    assert is_done.wait(20)
    gate.set()


def test_a_failure_ends_no_thread(threads: Threads, caplog: pytest.LogCaptureFixture) -> None:
    threads.hand_over(lambda: 1 // 0)
    assert threads.wait(20)
    assert "a mask could not be made" in caplog.text
    is_done = threading.Event()
    threads.hand_over(is_done.set)
    assert is_done.wait(20)
    assert len(own()) == 1


def test_they_end_where_nobody_closes_them() -> None:
    threads = Threads(2, NAME)
    threads.hand_over(lambda: None)
    assert threads.wait(20)
    running = own()
    del threads
    for thread in running:
        thread.join(20)
    assert own() == []
