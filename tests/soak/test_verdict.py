"""The verdict of a soak on its samples."""

from __future__ import annotations

from tools.soak.measure import Record, Sample, Timing, Verdict, latency_table


def sample(minute: int, memory: float, requests: int = 0) -> Sample:
    health = {"requests": requests, "active": 0, "queued": 0}
    return Sample(60.0 * minute, memory, 10, 5, health)


def test_growth_before_the_warm_up_does_not_count() -> None:
    samples = [sample(minute, 100e6 + 10e6 * min(minute, 10)) for minute in range(1, 121)]
    verdict = Verdict(samples, Record(), warm_up=600, exit_status=0)
    assert verdict.growth == (200e6, 200e6)
    assert list(verdict.faults()) == []


def test_steady_growth_is_a_fault() -> None:
    samples = [sample(minute, 100e6 + 1e5 * minute) for minute in range(1, 121)]
    verdict = Verdict([*samples, samples[-1]], Record(), warm_up=600, exit_status=0)
    assert verdict.growth == (101.2e6, 111.8e6)
    assert list(verdict.faults()) == ["memory grew by 10.5%, expected at most 2%"]


def test_what_is_left_and_a_bad_end_are_faults() -> None:
    verdict = Verdict([sample(120, 100e6, requests=2)], Record(), warm_up=0, exit_status=-9)
    assert list(verdict.faults()) == [
        "requests are left: 2, active 0, queued 0",
        "the server ended with status -9 after SIGTERM",
    ]


def test_latency_of_the_first_tenth_stands_beside_the_last() -> None:
    timings = [Timing("chat", 1.0 * second, 0.010 if second < 50 else 0.020) for second in range(101)]
    assert latency_table(timings).splitlines()[-1] == "| chat | 101 | 10 | 20 |"
