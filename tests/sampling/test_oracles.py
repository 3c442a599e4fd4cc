"""Every sampler has the distribution that an independent implementation of its formula has, and draws by it."""

from __future__ import annotations

import pytest

from tests.support.sampler_cases import KINDS, compare


@pytest.mark.parametrize("kind", KINDS)
def test_the_distribution_is_that_of_the_formula(kind: str) -> None:
    for seed in range(6):
        compare(kind, seed, num_rows=4)
