"""Tokens do not depend on the choice of kernels, except those that rounding decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.forward import GpuRunner
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.variants import KernelLimits, MatMulVariant, StreamVariant
from rnn_engine.types import TokenRun, run_step
from tests.support.gpu import eight_lanes
from tests.support.models import random_model, tiny_shape
from tests.support.tuned import load_with_matmuls
from tests.support.tuned_tokens import Draws, count_same, draw, load_chosen, possible, rounding_decides, works_of

MODEL = random_model(tiny_shape(layers=1), seed=3)
LIMITS = KernelLimits(can_broadcast=True)
IN_BYTES = "int8,activations=int8"


@pytest.fixture(scope="module")
def usual() -> Iterator[tuple[GpuRunner, MatMulKernels]]:
    runner, matmuls = load_with_matmuls(MODEL)
    with closing(runner):
        yield runner, matmuls


def is_compiled_soon(variant: MatMulVariant) -> bool:
    """Return True if a variant compiles quickly."""
    return isinstance(variant, StreamVariant) and variant.panels == 1


@eight_lanes
@settings(max_examples=2, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**64 - 1), temperature=st.sampled_from([0.0, 0.3, 1.0]))
def test_other_kernels_draw_the_same_tokens(
    usual: tuple[GpuRunner, MatMulKernels], data: st.DataObject, seed: int, temperature: float
) -> None:
    runner, matmuls = usual
    works = works_of(matmuls, (1,))
    variants = [each for each in possible(next(iter(works.values())), LIMITS) if is_compiled_soon(each)]
    variant = data.draw(st.sampled_from(variants))
    with closing(load_chosen(MODEL, dict.fromkeys(works, variant))) as other:
        assert count_same(runner, other, Draws([5], seed, temperature, num_tokens=12)) > 0


@eight_lanes
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_other_kernels_that_multiply_bytes_and_split_no_row_give_the_same_logits(data: st.DataObject) -> None:
    runner, matmuls = load_with_matmuls(MODEL, weights=IN_BYTES)
    works = {key: work for key, work in works_of(matmuls, (1,)).items() if work.number == "int8"}
    every = possible(next(iter(works.values())), LIMITS)
    variants = [each for each in every if isinstance(each, StreamVariant) and each.panels == each.splits == 1]
    variant = data.draw(st.sampled_from(variants))
    with closing(runner), closing(load_chosen(MODEL, dict.fromkeys(works, variant), IN_BYTES)) as other:
        for token in range(4):
            rows = [run_step(each, [TokenRun(0, [token], rows=1)]).full_row(0).copy() for each in (runner, other)]
            assert np.array_equal(rows[0], rows[1])


def test_rounding_decides_between_equal_logits_and_at_borders_alone() -> None:
    row = np.array([1.0, 3.0, 3.0 - 1e-6, 0.0], np.float32)
    assert draw(row, 0.0, 0.5) == 1
    assert rounding_decides(row, 2, 0.0, 0.5, rounding=1e-6)
    assert not rounding_decides(row, 0, 0.0, 0.5, rounding=1e-6)
    parts = np.exp(row.astype(np.float64))
    border = float((parts[1] + parts[2]) / parts.sum())  # above it token 0 is drawn
    assert draw(row, 1.0, border - 1e-3) == 2
    assert draw(row, 1.0, border + 1e-3) == 0
    assert rounding_decides(row, 2, 1.0, border + 1e-7, rounding=1e-6)
    assert not rounding_decides(row, 2, 1.0, border + 1e-3, rounding=1e-6)
