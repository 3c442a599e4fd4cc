"""Every shape of kernel compared with numpy, over sizes that fit none of them, and the choice of those that can run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from rnn_engine.forward.variants import KernelLimits, MatMulVariant, StreamVariant, TiledVariant
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.loading.kernel_choices import kernel_limits
from rnn_engine.types import F32
from tests.forward.test_matmul import Bench, draw, stored
from tests.support.gpu import eight_lanes, open_checked

STREAMS = (
    StreamVariant(tokens=1, groups=8, splits=4),
    StreamVariant(tokens=1, splits=16, unroll=4),
    StreamVariant(tokens=2, panels=2, inputs="broadcast", unroll=2),
    StreamVariant(tokens=4, panels=2, splits=2, unroll=8),
    StreamVariant(tokens=1, panels=8, inputs="broadcast"),
    StreamVariant(tokens=2, groups=2, panels=2, inputs="broadcast"),
    StreamVariant(tokens=3, panels=4, inputs="by_token"),
    StreamVariant(tokens=4, groups=4, panels=2, splits=2),
    StreamVariant(tokens=8, groups=2, panels=4, inputs="by_token"),
    StreamVariant(tokens=8, panels=2, splits=32),
    StreamVariant(tokens=16, panels=4, inputs="broadcast"),
    StreamVariant(tokens=32, splits=8),
)
TILES = (
    TiledVariant(rows=32, tokens=32, eights=1),
    TiledVariant(rows=64, tokens=32, each_rows=8, each_tokens=4),
    TiledVariant(rows=32, tokens=64, each_rows=4, each_tokens=8),
    TiledVariant(rows=64, tokens=64, each_rows=8, each_tokens=8),
    TiledVariant(rows=64, tokens=128, each_rows=8, each_tokens=8, eights=1),
)
LIMITS = KernelLimits(can_broadcast=True)


def case(*values: MatMulVariant | str) -> ParameterSet:
    """Return a variant as the parameter of a test, alone or with a format."""
    shares = any(isinstance(value, StreamVariant) and value.inputs != "direct" for value in values)
    return pytest.param(*values, marks=(eight_lanes,) if shares else ())


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    device, tuning = open_checked("software")
    with closing(device.allocate()) as memory:
        yield Bench(device, memory, tuning)


def run_with(bench: Bench, variant: MatMulVariant, matrices: list[F32], inputs: F32, weights: str) -> list[F32]:
    """Return the products by one kernel for any number of tokens. Skips if the device's subgroups are too narrow."""
    if isinstance(variant, StreamVariant):
        if variant.inputs != "direct" and not kernel_limits(bench.device).can_broadcast:
            pytest.skip("the lanes of this device can't share eight inputs")
        tuning = replace(bench.tuning, matmuls=(variant,), tiled=None, packed=(variant,), packed_tiled=None)
    else:
        tuning = replace(bench.tuning, matmuls=(), tiled=variant, packed=(), packed_tiled=variant)
    found, _ = replace(bench, tuning=tuning).multiply(matrices, inputs, weights=WEIGHT_FORMATS[weights])
    return found


@pytest.mark.parametrize(
    ("variant", "weights"),
    [*(case(variant, "f16") for variant in (*STREAMS, *TILES)), case(STREAMS[5], "int8"), case(TILES[1], "int8")],
    ids=str,
)
def test_a_variant_multiplies_matrices_of_any_size(bench: Bench, variant: MatMulVariant, weights: str) -> None:
    assert LIMITS.allow(variant)
    matrices = [draw(rows, 250, seed=rows) for rows in (65, 7, 130)]
    for count in (1, 70):
        inputs = draw(count, 250, seed=6)
        for matrix, found in zip(matrices, run_with(bench, variant, matrices, inputs, weights), strict=True):
            expected = inputs @ stored(matrix, WEIGHT_FORMATS[weights]).T
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("variant", [case(STREAMS[5]), case(TILES[3])], ids=str)
def test_a_token_that_is_not_finite_leaves_its_neighbours_alone(bench: Bench, variant: MatMulVariant) -> None:
    matrix, inputs = draw(70, 40), draw(20, 40, seed=6)
    (expected,) = run_with(bench, variant, [matrix], inputs, "f16")
    inputs[1] = np.nan
    (found,) = run_with(bench, variant, [matrix], inputs, "f16")
    assert np.isnan(found[1]).all()
    assert np.array_equal(np.delete(found, 1, axis=0), np.delete(expected, 1, axis=0))


@pytest.mark.parametrize("variant", [replace(TILES[0], number="f16"), replace(TILES[3], number="f16")], ids=str)
def test_products_in_f16_keep_to_their_bound(bench: Bench, variant: MatMulVariant) -> None:
    """Input, weight and product are each rounded by half a unit of 11 bits, or tiny ones by half the least number."""
    if not bench.device.has_f16:
        pytest.skip("the device has no f16")
    assert replace(LIMITS, has_f16=True).allow(variant)
    matrix, inputs = draw(70, 250), np.random.default_rng(3).normal(size=(70, 250)).astype(np.float32)
    (found,) = run_with(bench, variant, [matrix], inputs, "f32")
    rounding = 2.0**-11
    bound = (3 * rounding + 3 * rounding**2) * (np.abs(inputs) @ np.abs(matrix).T) + 250 * 2.0**-24
    assert (np.abs(found - inputs @ matrix.T) <= bound).all()


def test_what_is_beyond_f16_becomes_its_greatest(bench: Bench) -> None:
    if not bench.device.has_f16:
        pytest.skip("the device has no f16")
    inputs = np.full((20, 8), [[1e6, 0, 0, 0, 0, 0, 0, -1e6]], np.float32)
    (found,) = run_with(bench, replace(TILES[0], number="f16"), [np.eye(8, dtype=np.float32)], inputs, "f32")
    assert found[0].tolist() == [65504, 0, 0, 0, 0, 0, 0, -65504]


@pytest.mark.parametrize(
    "variant",
    [
        StreamVariant(tokens=1, groups=3),  # 24 rows do not divide a segment's 64
        StreamVariant(tokens=1, groups=4, panels=4),
        StreamVariant(tokens=1, groups=8, splits=8),  # 512 threads
        StreamVariant(tokens=64, panels=8, splits=8),  # 128 KiB of workgroup memory
        StreamVariant(tokens=1, splits=2, inputs="broadcast"),
        StreamVariant(tokens=16, inputs="by_token"),
        TiledVariant(rows=128, tokens=32),
        TiledVariant(rows=64, tokens=128),  # 512 threads
        TiledVariant(rows=64, tokens=64, eights=4),  # 20 KiB
        TiledVariant(rows=64, tokens=64, number="f16"),
    ],
    ids=str,
)
def test_a_variant_beyond_the_limits_is_not_allowed(variant: MatMulVariant) -> None:
    assert not LIMITS.allow(variant)


def test_lanes_share_inputs_only_where_subgroups_are_wide_enough() -> None:
    assert not KernelLimits().allow(StreamVariant(tokens=1, inputs="broadcast"))
