"""The verdict of a soak on its samples."""

from __future__ import annotations

import pytest

from tools.soak.measure import Growth, Record, Sample, Timing, Verdict, latency_table


def sample(minute: int, memory: float, requests: int = 0) -> Sample:
    health = {"requests": requests, "active": 0, "queued": 0}
    return Sample(60.0 * minute, memory, 10, 5, health, {}, 0, 100, 0)


def test_growth_before_the_warm_up_does_not_count() -> None:
    samples = [sample(minute, 100e6 + 10e6 * min(minute, 10)) for minute in range(1, 121)]
    found = Growth.of(samples, warm_up=600)
    assert found is not None
    assert (found.first, found.last, found.part) == (200e6, 200e6, 0)
    assert found.slope == pytest.approx(0)


def test_steady_growth_is_a_slope_and_a_fault() -> None:
    samples = [sample(minute, 100e6 + 1e5 * minute) for minute in range(1, 121)]
    found = Growth.of(samples, warm_up=600)
    assert found is not None
    assert found.slope == pytest.approx(6e6)
    assert (found.first, found.last) == (101.2e6, 111.8e6)
    verdict = Verdict(samples, Record(), samples[-1], warm_up=600, exit_status=0)
    assert list(verdict.faults()) == ["memory grew by 10.5%, expected at most 2%"]


def test_what_is_left_and_a_bad_end_are_faults() -> None:
    left = sample(120, 100e6, requests=2)
    verdict = Verdict([left], Record(), left, warm_up=0, exit_status=-9)
    assert list(verdict.faults()) == [
        "requests are left: 2, active 0, queued 0",
        "the server ended with status -9 after SIGTERM",
    ]


def test_latency_of_the_first_tenth_stands_beside_the_last() -> None:
    timings = [Timing("chat", 1.0 * second, 0.010 if second < 50 else 0.020) for second in range(101)]
    assert list(latency_table(timings))[-2] == "| chat | 101 | 10 | 20 | 10 | 20 |"
