"""Matmuls alone, compared with numpy: every kind of device, odd sizes, every activation, matrices split by rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.forward.matmul import MatMul, MatMulBuffers, MatMulKernels
from rnn_engine.forward.segments import Activation, Matrix, SegmentWeights
from rnn_engine.forward.step import StepLimits, StepSize
from rnn_engine.forward.tuning import Tuning
from rnn_engine.forward.weight_formats import STORED_FORMATS, WEIGHT_FORMATS, WeightFormat, round_up
from rnn_engine.gpu import Buffer, Device, Memory, Plan, Recorder
from rnn_engine.quantised.rows import Matrix as HostMatrix
from rnn_engine.quantised.rows import interleave_rows
from rnn_engine.types import F32
from tests.support.gpu import SHARING_KINDS, open_checked
from tests.support.kept_blocks import KINDS as KEPT_KINDS
from tests.support.kept_blocks import ONLY_KEPT, random_kept
from tests.support.reference import relative_error

LIMITS = StepLimits(num_slots=1, max_tokens=150, max_rows=1, num_candidates=1)
TOKEN_COUNTS = (1, 2, 3, 5, 8, 16, 17, 63, 65, 150)
F32_FORMAT = WEIGHT_FORMATS["f32"]
Q8_0 = WEIGHT_FORMATS["q8_0"]
FORMATS: tuple[WeightFormat, ...] = (WEIGHT_FORMATS["f16"], F32_FORMAT, Q8_0)

for_each_format = pytest.mark.parametrize("weights", FORMATS, ids=lambda weights: weights.name)


@dataclass
class Bench:
    """A device with the matmul kernels, for one tuning."""

    device: Device
    memory: Memory
    tuning: Tuning
    activations: str = "f32"

    def multiply(
        self,
        matrices: Sequence[HostMatrix],
        inputs: F32,
        *,
        weights: WeightFormat | Sequence[WeightFormat] = F32_FORMAT,
        activation: Activation = Activation.NONE,
        bias: F32 | None = None,
        before: F32 | None = None,
        factors: F32 | None = None,
        max_binding_bytes: int | None = None,
    ) -> tuple[list[F32], int]:
        """Multiply all `matrices` [R, C] by `inputs` [T, C] in one matmul.

        Returns the products and the number of dispatches. `weights` is the format of all matrices, or one for each.
        `bias` are operands that all tokens share. `factors` are those of each token, and follow the outputs in their
        buffer.
        """
        formats = weights if isinstance(weights, Sequence) else [weights] * len(matrices)
        count, columns = inputs.shape
        stride = round_up(columns, 8)
        total = sum(len(matrix) for matrix in matrices)
        after = np.zeros((count, total), np.float32) if factors is None else factors
        first, step = (0, 0) if factors is None else (count * total, total)
        buffers = MatMulBuffers(
            batch=self._buffer(np.array([count, 1, 0, 0], np.uint32), 4 * LIMITS.batch_places[2]),
            vectors=self._buffer(np.zeros(total, np.float32) if bias is None else bias),
            inputs=self._buffer(np.pad(inputs, ((0, 0), (0, stride - columns)))),
            outputs=self._buffer(np.concatenate([np.full_like(after, 7) if before is None else before, after])),
        )
        starts = np.cumsum([0, *(len(matrix) for matrix in matrices)]).tolist()
        limit = self.memory.max_binding_bytes
        self.memory.max_binding_bytes = max_binding_bytes or limit
        matmul = MatMul(
            "test",
            [
                Matrix(SegmentWeights(matrix, form), 0, stride, start, total, activation, first + start, step)
                for matrix, form, start in zip(matrices, formats, starts, strict=False)
            ],
            MatMulKernels(self.device.kernels, self.tuning, LIMITS, activations=self.activations),
            self.memory,
        )
        self.memory.max_binding_bytes = limit
        plan = Plan(tuple(matmul.bind(buffers).dispatches(StepSize(count, 1, 0))))
        Recorder(self.device).submit(plan)
        found = np.frombuffer(self.memory.read(buffers.outputs, 0, 4 * count * total), np.float32)
        return np.split(found.reshape(count, total), starts[1:-1], axis=1), len(plan.dispatches)

    def _buffer(self, data: NDArray[Any], num_bytes: int | None = None) -> Buffer:
        buffer = self.memory.create_buffer("test", num_bytes or data.nbytes)
        self.memory.upload(buffer, 0, data)
        return buffer


@pytest.fixture(scope="module", params=SHARING_KINDS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    device, tuning = open_checked(request.param)
    with closing(device.allocate()) as memory:
        yield Bench(device, memory, tuning)


def draw(*shape: int, seed: int = 5) -> F32:
    """Return random numbers that f16 holds exactly."""
    values = np.random.default_rng(seed).normal(size=shape)
    return values.astype(np.float16).astype(np.float32)


def stored(matrix: F32, weights: WeightFormat) -> F32:
    """Return the matrix rounded to a weight format."""
    return weights.unpack(weights.pack(matrix), *matrix.shape)


@pytest.mark.parametrize("count", TOKEN_COUNTS)
@for_each_format
def test_any_token_count(bench: Bench, count: int, weights: WeightFormat) -> None:
    matrix, inputs = draw(70, 40), draw(count, 40, seed=6)
    (found,), _ = bench.multiply([matrix], inputs, weights=weights)
    np.testing.assert_allclose(found, inputs @ stored(matrix, weights).T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (7, 9), (8, 8), (64, 16), (65, 3), (129, 250), (200, 64), (9, 1100)]
)
@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("weights", WEIGHT_FORMATS.values(), ids=lambda weights: weights.name)
def test_any_matrix_size(bench: Bench, rows: int, columns: int, count: int, weights: WeightFormat) -> None:
    matrix, inputs = draw(rows, columns), draw(count, columns, seed=6)
    (found,), _ = bench.multiply([matrix], inputs, weights=weights)
    np.testing.assert_allclose(found, inputs @ stored(matrix, weights).T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("rows", "columns"), [(65, 768), (9, 2304)])
@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("kind", ONLY_KEPT)
def test_blocks_that_are_only_kept(bench: Bench, kind: str, rows: int, columns: int, count: int) -> None:
    blocks, inputs = random_kept(kind, rows, columns), draw(count, columns, seed=6)
    (found,), _ = bench.multiply([blocks], inputs, weights=STORED_FORMATS[kind.lower()])
    expected = inputs.astype(np.float64) @ blocks.numbers().T.astype(np.float64)
    assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("kind", KEPT_KINDS)
def test_every_weight_of_blocks_is_exact(bench: Bench, kind: str) -> None:
    blocks = random_kept(kind, 24, 256)
    for start in (0, 128):
        one_each = np.eye(256, dtype=np.float32)[start : start + 128]
        (found,), _ = bench.multiply([blocks], one_each, weights=STORED_FORMATS[kind.lower()])
        assert np.array_equal(found.T, blocks.numbers()[:, start : start + 128])


@pytest.mark.parametrize("count", [3, 20])
@for_each_format
def test_a_token_that_is_not_finite_leaves_its_neighbours_alone(
    bench: Bench, count: int, weights: WeightFormat
) -> None:
    matrix, inputs = draw(70, 40), draw(count, 40, seed=6)
    (expected,), _ = bench.multiply([matrix], inputs, weights=weights)
    inputs[1] = np.nan
    (found,), _ = bench.multiply([matrix], inputs, weights=weights)
    assert np.isnan(found[1]).all()
    assert np.array_equal(np.delete(found, 1, axis=0), np.delete(expected, 1, axis=0))


@pytest.mark.parametrize("count", [1, 20])
def test_several_matrices_at_once(bench: Bench, count: int) -> None:
    matrices, inputs = [draw(rows, 24, seed=rows) for rows in (64, 5, 100, 1)], draw(count, 24)
    found, num_dispatches = bench.multiply(matrices, inputs)
    assert num_dispatches == 1
    for matrix, outputs in zip(matrices, found, strict=True):
        np.testing.assert_allclose(outputs, inputs @ matrix.T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [1, 20])
def test_matrices_of_several_formats(bench: Bench, count: int) -> None:
    matrices, inputs = [draw(rows, 40, seed=rows) for rows in (64, 5, 100, 1)], draw(count, 40)
    formats = [FORMATS[0], FORMATS[2], FORMATS[0], FORMATS[1]]
    found, num_dispatches = bench.multiply(matrices, inputs, weights=formats)
    assert num_dispatches == 3
    for matrix, weights, outputs in zip(matrices, formats, found, strict=True):
        np.testing.assert_allclose(outputs, inputs @ stored(matrix, weights).T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [1, 20])
def test_no_buffer_of_a_format_outgrows_a_binding(bench: Bench, count: int) -> None:
    matrices, inputs = [draw(rows, 40, seed=rows) for rows in (300, 10, 129)], draw(count, 40)
    room_for_128_rows = 64 * 150  # each has two blocks of 32 bytes
    found, num_dispatches = bench.multiply(matrices, inputs, weights=Q8_0, max_binding_bytes=room_for_128_rows)
    assert num_dispatches == 5
    for matrix, outputs in zip(matrices, found, strict=True):
        np.testing.assert_allclose(outputs, inputs @ stored(matrix, Q8_0).T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [1, 20])
def test_what_does_not_fit_a_binding_is_split_by_rows(bench: Bench, count: int) -> None:
    matrices, inputs = [draw(rows, 32, seed=rows) for rows in (300, 10, 129)], draw(count, 32)
    room_for_128_rows = 4 * 32 * 150
    found, num_dispatches = bench.multiply(matrices, inputs, max_binding_bytes=room_for_128_rows)
    assert num_dispatches == 5
    for matrix, outputs in zip(matrices, found, strict=True):
        np.testing.assert_allclose(outputs, inputs @ matrix.T, rtol=1e-5, atol=1e-4)


def sigmoid(value: F32) -> F32:
    return np.reciprocal(np.float32(1) + np.exp(-value))


ACTIVATIONS: dict[Activation, Callable[[F32, F32, F32], F32]] = {
    Activation.NONE: lambda total, operand, before: total,
    Activation.TANH: lambda total, operand, before: np.tanh(total),
    Activation.SIGMOID: lambda total, operand, before: sigmoid(total),
    Activation.SQUARED_RELU: lambda total, operand, before: np.maximum(total, 0) ** 2,
    Activation.BIASED_SIGMOID: lambda total, operand, before: sigmoid(total + operand),
    Activation.DECAY: lambda total, operand, before: np.exp(np.float32(-0.606531) * sigmoid(total + operand)),
    Activation.RESIDUAL: lambda total, operand, before: before + total,
    Activation.DOUBLE_EXP_DECAY: lambda total, operand, before: np.exp(-np.exp(total + operand)),
    Activation.SCALED_RESIDUAL: lambda total, operand, before: before + total * operand,
    Activation.SHIFTED_MIX: lambda total, operand, before: before + total * operand,
    Activation.BIASED_SCALE: lambda total, operand, before: before * (total + operand),
    Activation.BIASED: lambda total, operand, before: total + operand,
    Activation.SILU: lambda total, operand, before: total * sigmoid(total),
    Activation.PRODUCT: lambda total, operand, before: before * total,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", [1, 20])
def test_activations(bench: Bench, activation: Activation, count: int) -> None:
    matrix, inputs, bias, before = draw(70, 16), draw(count, 16), draw(70, seed=8), draw(count, 70, seed=9)
    factors = draw(count, 70, seed=10) if activation is Activation.SHIFTED_MIX else None
    (found,), _ = bench.multiply([matrix], inputs, activation=activation, bias=bias, before=before, factors=factors)
    expected = ACTIVATIONS[activation](inputs @ matrix.T, bias if factors is None else factors, before)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_gate_and_what_it_is_for_in_one_dispatch(bench: Bench, count: int, is_split: bool) -> None:
    gate, up, inputs = draw(99, 32), draw(99, 32, seed=8), draw(count, 32)
    rows = interleave_rows(gate, up)
    room = 4 * 32 * 150 if is_split else None  # for 128 rows
    (found,), num_dispatches = bench.multiply([rows], inputs, activation=Activation.SWIGLU, max_binding_bytes=room)
    assert num_dispatches == (2 if is_split else 1)
    total = inputs @ gate.T
    np.testing.assert_allclose(found[:, :99], total * sigmoid(total) * (inputs @ up.T), rtol=2e-5, atol=1e-4)
    assert (found[:, 99:] == 7).all()  # as they were


def test_tanh_of_a_large_argument_is_one(bench: Bench) -> None:
    (found,), _ = bench.multiply([np.full((8, 8), 3000.0, np.float32)], draw(1, 8) ** 2, activation=Activation.TANH)
    assert found.tolist() == [[1.0] * 8]


def test_a_weight_beyond_f16_becomes_its_greatest_value(bench: Bench) -> None:
    matrix = np.full((1, 8), [[1e6, 0, 0, 0, 0, 0, 0, -1e6]], np.float32)
    (found,), _ = bench.multiply([matrix], np.eye(8, dtype=np.float32), weights=WEIGHT_FORMATS["f16"])
    assert found[:, 0].tolist() == [65504, 0, 0, 0, 0, 0, 0, -65504]
