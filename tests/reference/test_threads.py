"""The matmuls of a small model run on one thread, and numpy has its threads again when the last of them is done."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from rnn_engine.reference.threads import matmul_threads
from tests.support.models import tiny_shape

BLAS = ThreadpoolController().select(user_api="blas")
SMALL, WIDE = tiny_shape(width=512), tiny_shape(width=1024)


def threads() -> set[int]:
    return {library["num_threads"] for library in BLAS.info()}


@pytest.fixture(autouse=True)
def two_threads() -> object:
    with BLAS.limit(limits=2):
        yield


@pytest.mark.skipif(not BLAS.info(), reason=f"numpy {np.__version__} has a BLAS whose threads can't be set")
def test_a_small_model_has_one_thread_until_the_last_step_ends() -> None:
    first, second = matmul_threads(SMALL), matmul_threads(SMALL)
    with first:
        with second:
            assert threads() == {1}
        assert threads() == {1}
    assert threads() == {2}
    with pytest.raises(ValueError, match="failed"), matmul_threads(SMALL):
        raise ValueError("failed")
    assert threads() == {2}


@pytest.mark.skipif(not BLAS.info(), reason=f"numpy {np.__version__} has a BLAS whose threads can't be set")
def test_a_wide_model_keeps_its_threads() -> None:
    with matmul_threads(WIDE):
        assert threads() == {2}
