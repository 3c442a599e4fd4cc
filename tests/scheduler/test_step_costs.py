"""Estimates of steps' times from measured ones."""

from __future__ import annotations

import pytest

from rnn_engine.scheduler.meter import StepCosts


def noted(steps: list[tuple[int, float]]) -> StepCosts:
    costs = StepCosts()
    for tokens, seconds in steps:
        costs.note(tokens, seconds)
    return costs


def test_the_first_step_of_a_size_does_not_count() -> None:
    assert noted([(1, 100.0)]).of(1) is None
    assert noted([(1, 100.0), (1, 2.0), (1, 4.0)]).of(1) == pytest.approx(3.0)


def test_sizes_that_were_not_run_are_not_known() -> None:
    assert noted([(8, 1.0)] * 2).of(1) is None


def test_longer_steps_lie_on_lines_between_those_that_were_measured() -> None:
    costs = noted([(4, 3.0), (4, 3.0), (8, 5.0), (8, 5.0)])
    assert costs.beyond(1, 1.5, 1) == pytest.approx(1.5)
    assert costs.beyond(1, 1.5, 2) == pytest.approx(2.0)
    assert costs.beyond(1, 1.5, 4) == pytest.approx(3.0)
    assert costs.beyond(1, 1.5, 6) == pytest.approx(4.0)
    assert costs.beyond(1, 1.5, 16) == pytest.approx(5.0)  # to be tried
    assert costs.beyond(6, 1.5, 8) == pytest.approx(5.0)


def test_estimates_beyond_the_measured_sizes_are_in_proportion_to_the_tokens() -> None:
    assert noted([]).estimate(5) == 0.0
    costs = noted([(4, 3.0), (4, 3.0), (8, 5.0), (8, 5.0)])
    assert [costs.estimate(tokens) for tokens in (0, 2, 4, 6, 8, 16)] == pytest.approx([0.0, 1.5, 3.0, 4.0, 5.0, 10.0])


def test_an_estimate_leaves_out_sizes_that_were_not_run_for_long() -> None:
    assert noted([(8, 9.0), (8, 9.0), *[(4, 1.0)] * 5000]).estimate(8) == pytest.approx(2.0)


def test_a_single_pause_counts_little() -> None:
    assert noted([*[(1, 1.0)] * 20, (1, 1000.0)]).of(1) == pytest.approx(1.2)


def test_a_size_that_was_not_run_for_long_is_measured_anew() -> None:
    costs = noted([(8, 9.0), (8, 9.0), *[(1, 1.0)] * 5000, (8, 50.0)])
    assert costs.beyond(1, 1.0, 8) == pytest.approx(1.0)
    costs.note(8, 2.0)
    assert costs.beyond(1, 1.0, 8) == pytest.approx(2.0)
