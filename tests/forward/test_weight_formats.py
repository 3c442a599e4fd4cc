"""Weight formats alone: what is packed comes out again, in blocks of the size that the format says."""

from __future__ import annotations

import numpy as np
import pytest

from rnn_engine.errors import DeviceError
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS, WeightFormat, one_format
from rnn_engine.types import F32
from tests.support.int8_format import Int8Format

FORMATS: tuple[WeightFormat, ...] = (*WEIGHT_FORMATS.values(), Int8Format())
SIZES = [(1, 1), (7, 9), (8, 8), (64, 16), (65, 3), (129, 250), (200, 64), (16, 33)]


def draw(rows: int, columns: int) -> F32:
    return np.random.default_rng(rows * columns).normal(size=(rows, columns)).astype(np.float32)


def round_trip(weights: WeightFormat, matrix: F32) -> F32:
    return weights.unpack(weights.pack(matrix), *matrix.shape)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_f32_comes_out_as_it_went_in(rows: int, columns: int) -> None:
    matrix = draw(rows, columns)
    assert np.array_equal(round_trip(WEIGHT_FORMATS["f32"], matrix), matrix)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_f16_is_rounded(rows: int, columns: int) -> None:
    matrix = draw(rows, columns)
    assert np.array_equal(round_trip(WEIGHT_FORMATS["f16"], matrix), matrix.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_a_block_has_a_scale_of_its_own(rows: int, columns: int) -> None:
    matrix = draw(rows, columns)
    found = round_trip(Int8Format(), matrix)
    for start in range(0, columns, 32):
        block, other = matrix[:, start : start + 32], found[:, start : start + 32]
        half_a_step = np.abs(block).max(axis=1, keepdims=True) / 127 / 2
        assert (np.abs(block - other) <= half_a_step * 1.0001).all()


@pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.name)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_buffers_have_the_bytes_that_the_format_says(weights: WeightFormat, rows: int, columns: int) -> None:
    assert weights.block_columns % 8 == 0
    num_blocks = -(-rows // 8) * 8 * -(-columns // weights.block_columns)
    arrays = weights.pack(draw(rows, columns))
    assert {name: array.nbytes for name, array in arrays.items()} == {
        name: num_blocks * num_bytes for name, num_bytes in weights.block_bytes.items()
    }


def test_rows_may_be_packed_a_few_panels_at_a_time() -> None:
    for weights in FORMATS:
        matrix = draw(40, 50)
        whole, first, last = weights.pack(matrix), weights.pack(matrix[:16]), weights.pack(matrix[16:])
        for name, array in whole.items():
            assert np.array_equal(array, np.concatenate([first[name], last[name]]))


def test_a_weight_beyond_f16_becomes_its_greatest_value() -> None:
    assert round_trip(WEIGHT_FORMATS["f16"], np.array([[1e6, -1e6, 1]], np.float32)).tolist() == [[65504, -65504, 1]]


def test_a_format_that_does_not_exist_is_an_error_that_names_those_that_do() -> None:
    with pytest.raises(DeviceError, match="no weight format 'f8'; expected one of f16, f32"):
        one_format("f8")
