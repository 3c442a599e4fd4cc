"""The matmuls of a small model run on one thread, and numpy has its threads again when the last of them is done.

The number of threads is the whole process's, and other tests run models in this one, so a process of its own is asked.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

SMALL = """
first, second = matmul_threads(tiny_shape(width=512)), matmul_threads(tiny_shape(width=512))
with first:
    with second:
        assert threads() <= {1}
    assert threads() <= {1}
assert threads() == before
try:
    with matmul_threads(tiny_shape(width=512)):
        raise ValueError("failed")
except ValueError:
    pass
assert threads() == before
"""
WIDE = """
with matmul_threads(tiny_shape(width=1024)):
    assert threads() == before
"""
BEGINNING = """
import numpy
from threadpoolctl import ThreadpoolController
from rnn_engine.reference.threads import matmul_threads
from tests.support.models import tiny_shape

blas = ThreadpoolController().select(user_api="blas")  # has no libraries if numpy's can't be set

def threads():
    return {library["num_threads"] for library in blas.info()}

blas.limit(limits=2)
before = threads()
"""


@pytest.mark.parametrize("steps", [pytest.param(SMALL, id="small"), pytest.param(WIDE, id="wide")])
def test_small_models_have_one_thread_until_their_last_step_ends(steps: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGINNING + steps], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
