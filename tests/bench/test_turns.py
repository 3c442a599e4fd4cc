"""Sides are measured in turns, and each ratio compares figures of one round."""

from __future__ import annotations

import pytest

from tools.bench.turns import print_table, take_turns


def test_sides_take_turns_and_ratios_are_of_one_round(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []
    speed = iter((10.0, 20.0, 100.0, 100.0, 2.0, 6.0))  # of the machine, which changes from round to round

    def measure(name: str) -> dict[str, float]:
        order.append(name)
        return {"tok/s": next(speed)}

    print_table(take_turns({"old": lambda: measure("old"), "new": lambda: measure("new")}, rounds=3))
    assert order == ["old", "new"] * 3
    assert "| tok/s | 10.0 | 20.0 | 2.00 (1.00-3.00) |" in capsys.readouterr().out
