"""A scheduler's counters, and the parts of its steps' time, by a clock that the test sets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from rnn_engine.errors import TimeLimitError
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, Started
from rnn_engine.scheduler import Delivery, Scheduler
from rnn_engine.telemetry import EngineCounters, Histogram, Timing
from rnn_engine.types import Batch, Readout, Ticket
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, scripted_logits

TOKENIZER = ByteTokenizer()
HOST_SECONDS = 0.25
DEVICE_SECONDS = 2.0


@dataclass
class SlowRunner(FakeRunner):
    """A runner that takes the host's seconds to submit a step, and the device's seconds to collect it."""

    now: float = 100.0

    def submit(self, batch: Batch) -> Ticket:
        self.now += HOST_SECONDS
        return super().submit(batch)

    def collect(self, ticket: Ticket) -> Readout:
        self.now += DEVICE_SECONDS
        return super().collect(ticket)


class Desk:
    """A scheduler over a slow runner, with all events that it delivered."""

    def __init__(self, num_slots: int = 4) -> None:
        self.runner = SlowRunner(scripted_logits(TOKENIZER.size, TOKENIZER.encode("x" * 9)), num_slots=num_slots)
        self.scheduler = Scheduler(self.runner, TOKENIZER.decode_bytes, clock=lambda: self.runner.now)
        self.told: list[Delivery] = []
        self._keys = iter(range(100))

    @property
    def counters(self) -> EngineCounters:
        return self.scheduler.counters

    def send(self, prompt: int = 2, max_tokens: int = 4, *, keep_end: bool = False) -> int:
        key = next(self._keys)
        sampling = SamplingParams(temperature=0.0)
        request = GenerateRequest([1] * prompt, max_tokens=max_tokens, sampling=sampling, keep_end=keep_end)
        self.scheduler.submit(key, request)
        return key

    def run(self) -> None:
        while self.scheduler.is_due():
            self.told += self.scheduler.step()

    def timing(self, key: int) -> Timing:
        [timing] = [one.outcome.timing for one in self.told if one.key == key and isinstance(one.outcome, Started)]
        assert timing is not None
        return timing


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.add(value)
    histogram.add(2.0, times=2)
    assert histogram.counts == [2, 3, 1]
    assert (histogram.count, histogram.sum) == (6, 10.0)


def test_tokens_are_counted_by_phase() -> None:
    desk = Desk()
    desk.send(prompt=5, max_tokens=4)
    desk.send(prompt=7, max_tokens=1)
    desk.send(prompt=3, max_tokens=0)
    desk.run()
    counters = desk.counters
    assert (counters.prefill_tokens, counters.decode_tokens, counters.generated_tokens) == (15, 3, 5)
    assert (counters.steps, counters.step_tokens.sum) == (4, 18)
    assert (counters.inter_token_seconds.count, counters.first_token_seconds.count) == (3, 2)


def test_the_run_of_a_last_token_draws_none() -> None:
    desk = Desk()
    desk.send(prompt=2, max_tokens=3, keep_end=True)
    desk.run()
    assert (desk.counters.decode_tokens, desk.counters.generated_tokens) == (3, 3)
    assert desk.counters.inter_token_seconds.count == 2


def test_the_time_of_a_step_is_split_and_idle_time_is_none_of_it() -> None:
    desk = Desk()
    desk.send(max_tokens=3)
    desk.run()
    desk.runner.now += 1000.0
    desk.send(max_tokens=3)
    desk.run()
    assert desk.counters.step_device_seconds.sum == 6 * DEVICE_SECONDS
    assert desk.counters.step_host_seconds.sum == 6 * HOST_SECONDS
    assert desk.counters.inter_token_seconds.sum == 4 * (DEVICE_SECONDS + HOST_SECONDS)


def test_the_time_in_which_all_are_paused_counts_for_nothing() -> None:
    desk = Desk()
    key = desk.send(max_tokens=3)
    assert desk.scheduler.is_due()
    desk.told += desk.scheduler.step()
    desk.scheduler.pause(key)
    assert not desk.scheduler.is_due()
    desk.runner.now += 1000.0
    desk.scheduler.pause(key, False)
    desk.run()
    assert desk.counters.step_host_seconds.sum == 3 * HOST_SECONDS


def test_a_request_is_timed_from_its_arrival_to_its_slot_and_to_its_first_token() -> None:
    desk = Desk(num_slots=1)
    first, second = desk.send(max_tokens=2), desk.send(max_tokens=1)
    desk.run()
    step = HOST_SECONDS + DEVICE_SECONDS
    assert desk.timing(first) == Timing(100.0, 100.0, 100.0 + step)
    assert desk.timing(second) == Timing(100.0, 100.0 + 2 * step, 100.0 + 3 * step)
    assert desk.counters.queue_seconds.sum == 2 * step
    assert desk.counters.first_token_seconds.sum == 4 * step


def test_the_arrival_is_the_clients_where_it_is_given() -> None:
    desk = Desk()
    desk.scheduler.submit(50, GenerateRequest([1], max_tokens=1), arrived=90.0)
    desk.run()
    assert desk.counters.queue_seconds.sum == 10.0


def test_a_step_that_fails_is_counted_apart_and_so_is_the_time_after_it() -> None:
    desk = Desk()
    desk.send(max_tokens=3)
    desk.runner.fail_when = lambda batch: len(desk.runner.batches) == 2
    desk.send(max_tokens=3)
    assert desk.scheduler.is_due()
    desk.told += desk.scheduler.step()
    desk.told += desk.scheduler.step()
    assert desk.scheduler.failure is not None
    desk.runner.now += 1000.0  # the device is opened again
    assert desk.scheduler.device_answers()
    desk.send(max_tokens=3)
    desk.run()
    counters = desk.counters
    assert (counters.failed_steps, counters.steps, counters.generated_tokens) == (1, 4, 5)
    assert counters.step_host_seconds.sum == 4 * HOST_SECONDS
    assert counters.inter_token_seconds.sum == 2 * (HOST_SECONDS + DEVICE_SECONDS)


def test_a_text_that_is_cut_at_its_deadline_counts_no_token_that_nobody_got() -> None:
    desk = Desk()
    key = desk.send(max_tokens=100)
    for _ in range(3):
        assert desk.scheduler.is_due()
        desk.told += desk.scheduler.step()
    desk.told += desk.scheduler.expire(key, TimeLimitError("late"))
    desk.run()
    [finished] = [one.outcome for one in desk.told if isinstance(one.outcome, Finished)]
    assert desk.counters.generated_tokens == finished.completion_tokens == 3


@pytest.mark.parametrize("prompt", [1, 40, 100])
def test_every_token_is_counted_once(prompt: int) -> None:
    desk = Desk()
    for key in range(6):
        desk.send(prompt=prompt + key, max_tokens=1 + key)
    desk.run()
    finished = [one.outcome for one in desk.told if isinstance(one.outcome, Finished)]
    assert desk.counters.generated_tokens == sum(outcome.completion_tokens for outcome in finished)
    assert desk.counters.prefill_tokens == sum(prompt + key for key in range(6))
    assert all(first < second for first, second in pairwise(desk.counters.step_tokens.bounds))
