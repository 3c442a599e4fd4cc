"""Lines through measured points, and what is said of them."""

from __future__ import annotations

import pytest

from tools.bench.linearity import find_bent, find_growing, fit_line

PLACES = list(range(0, 1000, 100))


def test_a_line_is_not_moved_by_a_slow_point() -> None:
    values = [2.0 + 0.5 * place for place in PLACES]
    values[3] *= 4
    line = fit_line(PLACES, values)
    assert (line.start, line.slope) == pytest.approx((2.0, 0.5))
    assert line.typical_residual == pytest.approx(0.0)
    assert line.greatest_residual == pytest.approx(3.0)


@pytest.mark.parametrize(("growth", "found"), [(-0.5, []), (0.0, []), (0.05, []), (0.2, ["time"])])
def test_what_grows_is_found(growth: float, found: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    values = [4.0 * (1 + growth * place / PLACES[-1]) for place in PLACES]
    assert find_growing("time", PLACES, values) == found
    assert f"time: 4 after 0 tokens, {values[-1]:.4g} after 900 ({growth:+.1%}" in capsys.readouterr().out


def test_what_is_no_line_is_found() -> None:
    assert find_bent("a line", PLACES, [3.0 + 2.0 * place for place in PLACES]) == []
    assert find_bent("a square", PLACES, [3.0 + place**2 for place in PLACES]) == ["a square"]
