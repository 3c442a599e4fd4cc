"""Products of byte matrices and byte activations, compared with numpy: kernels alone, and whole models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.variants import KernelLimits, MatMulVariant, StreamVariant, TiledVariant
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS, WeightFormat
from rnn_engine.loading.kernel_choices import kernel_limits
from rnn_engine.loading.runner import load_runner
from rnn_engine.types import F32, ModelShape, TokenRun, run_step
from tests.forward.test_matmul import Bench, draw, stored
from tests.forward.test_variants import run_with
from tests.support.gpu import SHARING_KINDS, eight_lanes, make_gpu_runner, open_checked
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.older_models import OLDER_SHAPES

BYTE_FORMATS = INT8, Q8_0 = WEIGHT_FORMATS["int8"], WEIGHT_FORMATS["q8_0"]
TOKEN_COUNTS = (1, 2, 3, 5, 8, 9, 16, 17, 63, 65, 130)
SIZES = ((1, 1), (7, 9), (8, 32), (65, 40), (129, 250), (200, 128), (9, 1100))
ONE_SPLIT: tuple[MatMulVariant, ...] = (
    StreamVariant(tokens=8, groups=2, panels=2, inputs="by_token", number="int8"),
    StreamVariant(tokens=1, panels=2, number="int8"),
    StreamVariant(tokens=3, groups=4, inputs="by_token", number="int8"),
    TiledVariant(rows=32, tokens=32, eights=4, number="int8"),
    TiledVariant(rows=64, tokens=32, each_rows=8, each_tokens=4, eights=4, number="int8"),
)
SPLITS: tuple[MatMulVariant, ...] = (
    StreamVariant(tokens=2, groups=4, panels=2, splits=2, number="int8"),
    StreamVariant(tokens=2, panels=2, splits=2, number="int8", unroll=2),
)
for_each_format = pytest.mark.parametrize("weights", BYTE_FORMATS, ids=lambda weights: weights.name)


@pytest.fixture(scope="module", params=SHARING_KINDS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    device, tuning = open_checked(request.param)
    with closing(device.allocate()) as memory:
        yield Bench(device, memory, tuning, "int8")


def in_blocks(inputs: F32) -> F32:
    """Return the inputs [T, C] as [T, C / 32, 32], with rows padded by zeros."""
    return np.pad(inputs, ((0, 0), (0, -inputs.shape[1] % 32))).reshape(len(inputs), -1, 32)


def scales_of(inputs: F32) -> F32:
    """Return the size of one step at each input [T, C]."""
    scales = np.abs(in_blocks(inputs)).max(axis=-1, keepdims=True) / np.float32(127)
    return np.broadcast_to(scales, in_blocks(inputs).shape).reshape(len(inputs), -1)[:, : inputs.shape[1]]


def rounded(inputs: F32) -> F32:
    """Return the inputs [T, C] rounded to multiples of their scales, from -127 to 127 times."""
    scales = scales_of(inputs)
    return np.rint(np.divide(inputs, scales, out=np.zeros_like(inputs), where=scales > 0)) * scales


def assert_right(found: F32, matrix: F32, inputs: F32) -> None:
    """Compare with the products of rounded inputs. An input halfway between two steps may be rounded to either."""
    scales = scales_of(inputs)
    steps = np.divide(inputs, scales, out=np.zeros_like(inputs), where=scales > 0)
    halfway = np.abs(np.abs(steps - np.trunc(steps)) - 0.5) < 1e-4
    expected = rounded(inputs).astype(np.float64) @ matrix.T
    sums = np.abs(inputs) @ np.abs(matrix).T
    assert (np.abs(found - expected) <= 1e-6 * sums + (halfway * scales) @ np.abs(matrix).T).all()


@pytest.mark.parametrize("count", TOKEN_COUNTS)
def test_any_token_count(bench: Bench, count: int) -> None:
    matrix, inputs = draw(70, 140), draw(count, 140, seed=6)
    (found,), num_dispatches = bench.multiply([matrix], inputs, weights=INT8)
    assert num_dispatches == 2  # one of them rounds the inputs
    assert_right(found, stored(matrix, INT8), inputs)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("count", [1, 20])
@for_each_format
def test_any_matrix_size(bench: Bench, rows: int, columns: int, count: int, weights: WeightFormat) -> None:
    matrix, inputs = draw(rows, columns), draw(count, columns, seed=6)
    (found,), _ = bench.multiply([matrix], inputs, weights=weights)
    assert_right(found, stored(matrix, weights), inputs)


@for_each_format
def test_rounding_changes_a_product_by_half_a_step_of_each_input_at_most(bench: Bench, weights: WeightFormat) -> None:
    matrix, inputs = stored(draw(70, 250), weights), np.random.default_rng(3).normal(size=(20, 250)).astype(np.float32)
    (found,), _ = bench.multiply([matrix], inputs, weights=weights)
    errors, bound = np.abs(found - inputs @ matrix.T), scales_of(inputs) / 2 @ np.abs(matrix).T
    assert (errors <= 1.001 * bound).all()
    assert errors.max() > 1e-3  # it is rounded


def test_large_and_small_blocks_of_a_token_have_scales_of_their_own(bench: Bench) -> None:
    matrix, inputs = draw(70, 128), draw(3, 128, seed=6)
    inputs[:, :32] *= 1e6
    inputs[:, 32:64] = 0
    inputs[:, 64:96] *= 1e-6
    inputs[1] = 0
    inputs[2] = 1e-35
    (found,), _ = bench.multiply([matrix], inputs, weights=Q8_0)
    assert_right(found[:1], stored(matrix, Q8_0), inputs[:1])
    assert not found[1:].any()


def test_matrices_of_bytes_beside_others(bench: Bench) -> None:
    """The inputs of other formats are not rounded."""
    matrices, inputs = [draw(rows, 40, seed=rows) for rows in (64, 5, 100, 1)], draw(20, 40)
    formats = [WEIGHT_FORMATS[name] for name in ("f16", "int8", "q8_0", "int4")]
    found, num_dispatches = bench.multiply(matrices, inputs, weights=formats)
    assert num_dispatches == 5
    for matrix, weights, outputs in zip(matrices, formats, found, strict=True):
        if weights in BYTE_FORMATS:
            assert_right(outputs, stored(matrix, weights), inputs)
        else:
            np.testing.assert_allclose(outputs, inputs @ stored(matrix, weights).T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@for_each_format
def test_a_token_that_is_not_finite_leaves_its_neighbours_alone(
    bench: Bench, count: int, value: float, weights: WeightFormat
) -> None:
    matrix, inputs = draw(70, 40), draw(count, 40, seed=6)
    (expected,), _ = bench.multiply([matrix], inputs, weights=weights)
    inputs[1, 7] = value
    (found,), _ = bench.multiply([matrix], inputs, weights=weights)
    assert not np.isfinite(found[1]).any()
    assert np.array_equal(np.delete(found, 1, axis=0), np.delete(expected, 1, axis=0))


@pytest.fixture(scope="module")
def software() -> Iterator[Bench]:
    device, tuning = open_checked("software")
    with closing(device.allocate()) as memory:
        yield Bench(device, memory, tuning, "int8")


@eight_lanes
def test_variants_are_right_and_those_without_splits_equal(software: Bench) -> None:
    """Sums within a block are exact, and blocks are added in their order, so all sums are equal to the last bit."""
    matrices = [draw(rows, 250, seed=rows) for rows in (65, 7, 130)]
    limits = kernel_limits(software.device)
    first_variant, *others = filter(limits.allow, (*ONE_SPLIT, *SPLITS))
    for count in (1, 70):
        inputs = draw(count, 250, seed=6)
        first = run_with(software, first_variant, matrices, inputs, "int8")
        for matrix, found in zip(matrices, first, strict=True):
            assert_right(found, stored(matrix, INT8), inputs)
        for variant in others:
            for matrix, found, same in zip(
                matrices, run_with(software, variant, matrices, inputs, "int8"), first, strict=True
            ):
                assert_right(found, stored(matrix, INT8), inputs)
                assert variant in SPLITS or np.array_equal(found, same), variant


@pytest.mark.parametrize("variant", [*ONE_SPLIT, *SPLITS], ids=str)
def test_a_variant_is_allowed(variant: MatMulVariant) -> None:
    assert KernelLimits(can_broadcast=True, threads=256).allow(variant)


@pytest.mark.parametrize(
    "variant",
    [
        StreamVariant(tokens=1, inputs="broadcast", number="int8"),
        StreamVariant(tokens=16, inputs="by_token", number="int8"),
        StreamVariant(tokens=4, splits=2, inputs="by_token", number="int8"),
        StreamVariant(tokens=4, inputs="by_token", number="int8", unroll=2),
        TiledVariant(rows=32, tokens=32, eights=2, number="int8"),
    ],
    ids=str,
)
def test_a_variant_beyond_the_limits_is_not_allowed(variant: MatMulVariant) -> None:
    assert not KernelLimits(can_broadcast=True).allow(variant)


WEIGHTS = "int8,activations=int8"
MODEL = random_model(tiny_shape(layers=1), seed=6)
TOKENS = np.random.default_rng(7).integers(0, MODEL.shape.vocab_size, size=(3, 24)).tolist()


def rows_of(model: TensorModel, weights: str, chunks: Sequence[int], beside: int = 0) -> F32:
    """Return the logits of the first text's tokens, run in chunks of these lengths beside `beside` other texts."""
    runner = make_gpu_runner(model, num_slots=3, max_tokens=72, max_rows=72, num_candidates=8, weights=weights)
    rows: list[F32] = []
    with closing(runner):
        start = 0
        for length in chunks:
            batch = [TokenRun(slot, TOKENS[slot + 1][start : start + length], rows=1) for slot in range(beside)]
            batch.append(TokenRun(beside, TOKENS[0][start : start + length], rows=length))
            readout = run_step(runner, batch)
            rows += [readout.full_row(beside + row).copy() for row in range(length)]
            start += length
    return np.array(rows)


def test_results_depend_on_nothing_but_the_sequence() -> None:
    """The kernels for software devices split no row, so results are equal to the last bit."""
    alone = rows_of(MODEL, WEIGHTS, [24])
    assert np.array_equal(rows_of(MODEL, WEIGHTS, [1, 3, 8, 12]), alone)
    assert np.array_equal(rows_of(MODEL, WEIGHTS, [5, 1, 18], beside=2), alone)


@pytest.mark.parametrize("shape", [tiny_shape(), *OLDER_SHAPES], ids=lambda shape: shape.version)
def test_a_model_of_any_version_gives_nearly_what_it_gives_in_f32(shape: ModelShape) -> None:
    model = random_model(shape, seed=6)
    plain, found = (rows_of(model, f"q8_0{more}", [24]) for more in ("", ",activations=int8"))
    errors = np.abs(found - plain).max(axis=1) / np.abs(plain).max(axis=1)
    assert 1e-4 < errors.max() < 0.1


def test_activations_in_int8_are_refused_where_nothing_can_use_them() -> None:
    for weights in ("f16,activations=int8", "stored,activations=int8", "int8,layers=0,head=f16,activations=int8"):
        with pytest.raises(InvalidRequestError, match="needs a matrix in int8 or q8_0"):
            load_runner(MODEL, weights=weights)
