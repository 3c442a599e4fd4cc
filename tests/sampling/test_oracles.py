"""Every sampler has the same distribution as an independent implementation of its formula, and draws by it."""

from __future__ import annotations

import pytest

from tests.support.sampler_cases import KINDS, chi_square, compare


@pytest.mark.parametrize("kind", KINDS)
def test_the_distribution_is_that_of_the_formula(kind: str) -> None:
    for seed in range(6):
        compare(kind, seed, num_rows=4)


@pytest.mark.parametrize("kind", ["nucleus", "temperature alone", "mirostat 2", "ai00's typical", "chain"])
def test_tokens_are_drawn_as_often_as_the_formula_says(kind: str) -> None:
    value, freedom = chi_square(kind, seed=0, num_draws=1000)
    assert freedom >= 1
    assert value < freedom + 5 * (2 * freedom) ** 0.5
