"""Weight formats alone: packed weights are read back as precisely and from as many bytes as the format says."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import ml_dtypes
import numpy as np
import pytest

from rnn_engine.forward.weight_formats import WEIGHT_FORMATS, WeightFormat
from rnn_engine.quantised import NF4_LEVELS, SF4_LEVELS, Blocks
from rnn_engine.quantised.formats import PLAIN_FORMATS
from rnn_engine.quantised.rows import interleave_rows, read_rows
from rnn_engine.types import F32
from tests.support.kept_blocks import random_kept

SIZES = [(1, 1), (7, 9), (8, 8), (64, 16), (65, 3), (129, 250), (200, 64), (16, 33)]
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
QUANTISED = sorted({*WEIGHT_FORMATS} - {*FLOATS})

for_each_format = pytest.mark.parametrize("weights", WEIGHT_FORMATS.values(), ids=lambda weights: weights.name)
for_each_quantised = pytest.mark.parametrize("name", QUANTISED)
for_each_size = pytest.mark.parametrize(("rows", "columns"), SIZES)


def draw(rows: int, columns: int) -> F32:
    return np.random.default_rng(rows * columns).normal(size=(rows, columns)).astype(np.float32)


def round_trip(weights: WeightFormat, matrix: F32) -> F32:
    return weights.unpack(weights.pack(matrix), *matrix.shape)


@for_each_size
@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_rounded_to_their_type(name: str, rows: int, columns: int) -> None:
    matrix = draw(rows, columns)
    expected = matrix.astype(FLOATS[name]).astype(np.float32)
    assert np.array_equal(round_trip(WEIGHT_FORMATS[name], matrix), expected)


def half_a_step_of_range(blocks: F32, steps: int) -> F32:
    """Return the error's bound for blocks [..., B] in `steps` equal steps, with some room for scales in f16."""
    span: F32 = np.maximum(blocks.max(axis=-1), 0) - np.minimum(blocks.min(axis=-1), 0)
    room: F32 = np.abs(blocks).max(axis=-1) * np.float32(2**-10)
    return span / np.float32(2 * steps) + room


def half_a_step_of_greatest(blocks: F32, steps: float) -> F32:
    greatest: F32 = np.abs(blocks).max(axis=-1)
    return greatest * np.float32(0.5 / steps + 2**-10)


WIDEST_GAP = {name: float(np.diff(levels).max()) for name, levels in (("nf4", NF4_LEVELS), ("sf4", SF4_LEVELS))}
BOUNDS: dict[str, Callable[[F32], F32]] = {
    "int8": lambda blocks: half_a_step_of_range(blocks, 255),
    "int4": lambda blocks: half_a_step_of_range(blocks, 15),
    "q4_1": lambda blocks: half_a_step_of_range(blocks, 15),
    "q8_0": lambda blocks: half_a_step_of_greatest(blocks, 127),
    "q4_0": lambda blocks: half_a_step_of_greatest(blocks, 4),  # the side that has 7 steps may miss its end by a step
    "nf4": lambda blocks: half_a_step_of_greatest(blocks, 1 / WIDEST_GAP["nf4"]),
    "sf4": lambda blocks: half_a_step_of_greatest(blocks, 1 / WIDEST_GAP["sf4"]),
    "q4_k": lambda blocks: half_a_step_of_range(blocks, 15),
    "q5_k": lambda blocks: half_a_step_of_range(blocks, 31),
    "q6_k": lambda blocks: half_a_step_of_greatest(blocks, 31),
}


@for_each_quantised
@for_each_size
def test_weights_are_missed_by_half_a_step_of_their_own_block_at_most(name: str, rows: int, columns: int) -> None:
    weights = WEIGHT_FORMATS[name]
    matrix = draw(rows, columns) * np.float32(10.0) ** np.arange(-2, 3)[np.arange(columns) * 5 // columns]
    found = round_trip(weights, matrix)
    for start in range(0, columns, weights.block_columns):
        end = start + weights.block_columns
        block = matrix[:, start:end]
        bound = BOUNDS[name](block)
        miss = np.abs(block - found[:, start:end])
        assert (np.sqrt((miss**2).mean(axis=-1)) <= bound).all()
        if name in ("int8", "q8_0"):
            assert (miss <= bound[:, np.newaxis]).all()


def plain_int4(blocks: F32) -> F32:
    """Return blocks [..., B] rounded to 15 steps from the least weight to the greatest."""
    least, greatest = blocks.min(axis=-1, keepdims=True), blocks.max(axis=-1, keepdims=True)
    step = (greatest - least) / 15
    return np.asarray(np.rint((blocks - least) / step) * step + least)


def plain_q4_0(blocks: F32) -> F32:
    """Return blocks [..., B] rounded so that the weight farthest from 0 is 8 steps from it."""
    step = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1) / -8
    return np.asarray(np.rint(blocks / step).clip(-8, 7) * step)


def plain_codebook(levels: tuple[float, ...]) -> Callable[[F32], F32]:
    """Return a function that rounds blocks [..., B]. The weight farthest from 0 gets a level at an end."""

    def quantise(blocks: F32) -> F32:
        scale = np.abs(blocks).max(axis=-1, keepdims=True)
        distances = np.abs((blocks / scale)[..., np.newaxis] - np.array(levels, np.float32))
        return np.asarray(np.array(levels, np.float32)[distances.argmin(axis=-1)] * scale)

    return quantise


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("int4", plain_int4),
        ("q4_1", plain_int4),
        ("q4_0", plain_q4_0),
        ("nf4", plain_codebook(NF4_LEVELS)),
        ("sf4", plain_codebook(SF4_LEVELS)),
    ],
)
def test_4_bits_lose_less_than_with_the_scale_that_reaches_the_farthest_weight(
    name: str, plain: Callable[[F32], F32]
) -> None:
    weights, matrix = WEIGHT_FORMATS[name], draw(64, 512)
    blocks = matrix.reshape(64, -1, weights.block_columns)
    plain_error = ((plain(blocks) - blocks) ** 2).sum(axis=-1)
    error = ((round_trip(weights, matrix).reshape(blocks.shape) - blocks) ** 2).sum(axis=-1)
    assert (error <= plain_error * 1.01).all()  # the plain scale is not rounded to f16
    assert error.sum() < 0.92 * plain_error.sum()


@pytest.mark.parametrize("name", PLAIN_FORMATS)
@for_each_size
def test_what_was_quantised_before_stays_as_it_is(name: str, rows: int, columns: int) -> None:
    weights = WEIGHT_FORMATS[name]
    once = round_trip(weights, draw(rows, columns))
    assert np.array_equal(round_trip(weights, once), once)


@for_each_quantised
@pytest.mark.parametrize("value", [0.0, 3.5, -0.25, 1e-9, 1e9])
def test_blocks_of_one_value(name: str, value: float) -> None:
    matrix = np.full((3, 40), value, np.float32)
    found = round_trip(WEIGHT_FORMATS[name], matrix)
    assert np.isfinite(found).all()
    if abs(value) in (0.0, 3.5, 0.25):
        np.testing.assert_allclose(found, matrix, rtol=2**-10)


def test_the_levels_of_nf4_are_quantiles_of_the_normal_distribution() -> None:
    check_levels(NF4_LEVELS, NormalDist().inv_cdf)


def test_the_levels_of_sf4_are_quantiles_of_students_t_with_5_degrees_of_freedom() -> None:
    places = np.linspace(-20, 20, 2_000_001)
    density = (1 + places**2 / 5) ** -3
    chance = np.cumsum(density)
    chance /= chance[-1]
    check_levels(SF4_LEVELS, lambda probability: float(np.interp(probability, chance, places)), tolerance=1e-3)


def check_levels(levels: tuple[float, ...], quantile: Callable[[float], float], tolerance: float = 1e-6) -> None:
    """Check that the levels are 8 evenly spaced quantiles up to the median and 9 from there, as in the papers."""
    edge = (1 / 32 + 1 / 30) / 2
    chances = [*np.linspace(edge, 0.5, 8), *np.linspace(0.5, 1 - edge, 9)[1:]]
    found = [quantile(float(chance)) for chance in chances]
    np.testing.assert_allclose(levels, np.array(found) / np.abs(found).max(), atol=tolerance)


@for_each_format
@for_each_size
def test_buffers_have_the_bytes_that_the_format_says(weights: WeightFormat, rows: int, columns: int) -> None:
    assert weights.block_columns % 8 == 0
    num_blocks = -(-rows // 8) * 8 * -(-columns // weights.block_columns)
    arrays = weights.pack(draw(rows, columns))
    assert {name: array.nbytes for name, array in arrays.items()} == {
        name: num_blocks * num_bytes for name, num_bytes in weights.block_bytes.items()
    }


@for_each_format
def test_rows_may_be_packed_a_few_panels_at_a_time(weights: WeightFormat) -> None:
    matrix = draw(40, 50)
    whole, first, last = weights.pack(matrix), weights.pack(matrix[:16]), weights.pack(matrix[16:])
    for name, array in whole.items():
        assert np.array_equal(array, np.concatenate([first[name], last[name]]))


def test_a_weight_beyond_f16_becomes_its_greatest_value() -> None:
    assert round_trip(WEIGHT_FORMATS["f16"], np.array([[1e6, -1e6, 1]], np.float32)).tolist() == [[65504, -65504, 1]]


@pytest.mark.parametrize("kinds", [("Q4_K", "Q4_K"), ("Q4_K", "Q6_K")])
def test_rows_of_two_matrices_in_turns(kinds: tuple[str, str]) -> None:
    blocks = [random_kept(kind, 12, 256, seed=seed) for seed, kind in enumerate(kinds)]
    both = interleave_rows(*blocks)
    assert both.shape == (24, 256)
    found = read_rows(both[8:20])
    is_kept = kinds[0] == kinds[1]
    assert isinstance(found, Blocks) == is_kept
    numbers = found.numbers() if isinstance(found, Blocks) else found
    for first, each in enumerate(blocks):
        assert np.array_equal(numbers[first::2], each.numbers()[4:10])
