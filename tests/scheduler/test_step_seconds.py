"""The number of tokens that a submit draws, by the measured times of steps and of the host's part."""

from __future__ import annotations

import pytest

from rnn_engine.scheduler.meter import StepSeconds, StepTimes
from rnn_engine.scheduler.queue import DECODE, TokenDemand

MOST = 8


def decode_step(begun: float, num_steps: int = 1) -> StepTimes:
    return StepTimes(begun, [DECODE], [1], num_steps)


def run_ahead(step_seconds: float, host_seconds: float, num_submits: int = 100) -> StepSeconds:
    """Run submits, two always in flight after a first step; the host takes `host_seconds` after collecting each."""
    seconds = StepSeconds()
    seconds.note(decode_step(1.0 - step_seconds), 1.0 - step_seconds, 1.0)
    now, device = 1.0, 1.0 + step_seconds
    in_flight = [(decode_step(now), device)]
    for _ in range(num_submits):
        count = seconds.count_draws(MOST)
        device = max(device, now) + count * step_seconds
        in_flight.append((decode_step(now, count), device))
        times, done = in_flight.pop(0)
        asked, now = now + host_seconds, max(now + host_seconds, done)
        seconds.note(times, asked, now)
    return seconds


@pytest.mark.parametrize(
    ("step", "host", "expected"),
    [
        (0.001, 0.0001, 1),  # the host's part is short beside one step
        (0.001, 0.0006, 2),
        (0.001, 0.01, MOST),  # the host is slower than the device
        (0.0003, 0.00031, 4),
        (0.0045, 0.004, 2),  # two submits draw for 20 ms at most
        (0.02, 0.02, 1),
    ],
)
def test_as_few_tokens_as_keep_the_device_at_work(step: float, host: float, expected: int) -> None:
    assert run_ahead(step, host).count_draws(MOST) == expected


def test_one_token_where_nothing_is_known() -> None:
    assert StepSeconds().count_draws(MOST) == 1


def test_short_steps_may_be_submitted_ahead() -> None:
    seconds = StepSeconds()
    assert not seconds.is_short(None)
    assert not seconds.is_short(1)
    seconds.note(decode_step(1.0, num_steps=4), asked=1.0, now=1.02)
    assert seconds.is_short(None)
    assert not seconds.is_short(1)
    seconds.note(StepTimes(1.02, [TokenDemand(10)], [10], 1), asked=1.02, now=1.03)
    assert seconds.is_short(19)
    assert not seconds.is_short(21)


def test_long_steps_are_not_submitted_ahead() -> None:
    seconds = StepSeconds()
    seconds.note(decode_step(1.0), asked=1.0, now=1.011)
    assert not seconds.is_short(None)


def test_a_step_that_was_done_while_the_host_was_busy_does_not_count_as_short() -> None:
    seconds = StepSeconds()
    seconds.note(decode_step(1.0), asked=1.0, now=1.004)
    assert seconds.count_draws(MOST) == 2
    now = 1.004
    for _ in range(30):
        steps = decode_step(now - 0.002), decode_step(now - 0.001)
        now += 0.03
        for step in steps:  # both were done before the host asked for the first
            seconds.note(step, asked=now, now=now + 0.0001)
            now += 0.0001
    assert seconds.count_draws(MOST) == 2
