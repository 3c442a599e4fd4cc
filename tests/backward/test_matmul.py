"""The backward pass of matmuls alone, compared with numpy: odd sizes, every format, activations, and what adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.backward.matmul import TransposedMatMul
from rnn_engine.forward.matmul import MatMul, MatMulBuffers, MatMulKernels
from rnn_engine.forward.segments import Activation, Matrix, SegmentWeights
from rnn_engine.forward.step import StepLimits, StepSize
from rnn_engine.forward.tuning import Tuning
from rnn_engine.forward.weight_formats import STORED_FORMATS, WEIGHT_FORMATS, WeightFormat, round_up
from rnn_engine.gpu import Buffer, Device, Memory, Plan, Recorder
from rnn_engine.types import F32
from tests.support.gpu import SHARING_KINDS, open_checked
from tests.support.kept_blocks import ONLY_KEPT, random_kept
from tests.support.reference import relative_error

LIMITS = StepLimits(num_slots=1, max_tokens=40, max_rows=1, num_candidates=1)
F16, FLOATS, INT8 = (WEIGHT_FORMATS[name] for name in ("f16", "f32", "int8"))
UNTOUCHED = 7.0  # what the buffer of the results holds before


@dataclass
class Bench:
    """A device with the matmul kernels, for one tuning."""

    device: Device
    memory: Memory
    tuning: Tuning

    def differentiate(
        self,
        matrices: Sequence[Matrix],
        output_gradients: F32,
        num_floats: int,
        *,
        inputs: F32 | None = None,
        adds: bool = False,
        max_binding_bytes: int | None = None,
    ) -> tuple[F32, int]:
        """Return the gradients of the inputs, a buffer of `num_floats`, and the number of dispatches.

        `output_gradients` and `inputs` [T, n] are the buffers of the same name.
        """
        count = len(output_gradients)
        batch = self._buffer(np.array([count, 1, 0, 0] + [0] * (LIMITS.batch_places[2] - 4), np.uint32))
        gradients = self._buffer(np.full(num_floats, UNTOUCHED, np.float32))
        outputs, values = self._buffer(output_gradients), None if inputs is None else self._buffer(inputs)
        limit = self.memory.max_binding_bytes
        self.memory.max_binding_bytes = max_binding_bytes or limit
        kernels = MatMulKernels(self.device.kernels, self.tuning, LIMITS)
        matmul = MatMul("test", matrices, kernels, self.memory)
        self.memory.max_binding_bytes = limit
        stage = TransposedMatMul.of(
            matmul.bind(MatMulBuffers(batch, gradients, values or gradients, outputs)),
            self.memory,
            output_gradients=outputs,
            input_gradients=gradients,
            inputs=values,
            adds=adds,
        )
        plan = Plan(tuple(stage.dispatches(StepSize(count, 1, 0))))
        Recorder(self.device).submit(plan)
        return np.frombuffer(self.memory.read(gradients, 0, 4 * num_floats), np.float32), len(plan.dispatches)

    def _buffer(self, data: NDArray[Any]) -> Buffer:
        buffer = self.memory.create_buffer("test", data.nbytes)
        self.memory.upload(buffer, 0, data)
        return buffer


@pytest.fixture(scope="module", params=SHARING_KINDS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    device, tuning = open_checked(request.param)
    with closing(device.allocate()) as memory:
        yield Bench(device, memory, tuning)


def draw(*shape: int, seed: int = 5) -> F32:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float16).astype(np.float32)


def stored(matrix: F32, weights: WeightFormat) -> F32:
    """Return the matrix rounded to a weight format."""
    return weights.unpack(weights.pack(matrix), *matrix.shape)


def padded(values: F32) -> F32:
    return np.pad(values, ((0, 0), (0, -values.shape[1] % 8)), constant_values=3)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 9), (64, 16), (65, 3), (129, 250), (24, 600)])
@pytest.mark.parametrize("count", [1, 9, 40])
@pytest.mark.parametrize("weights", WEIGHT_FORMATS.values(), ids=lambda weights: weights.name)
def test_any_matrix_size(bench: Bench, rows: int, columns: int, count: int, weights: WeightFormat) -> None:
    matrix, gradients = draw(rows, columns), padded(draw(count, rows, seed=6))
    stride = round_up(columns, 8)
    segment = Matrix(SegmentWeights(matrix, weights), 0, stride, 0, gradients.shape[1])
    found, _ = bench.differentiate([segment], gradients, count * stride)
    found = found.reshape(count, stride)
    expected = gradients[:, :rows] @ stored(matrix, weights)
    np.testing.assert_allclose(found[:, :columns], expected, rtol=1e-5, atol=1e-4)
    assert (found[:, columns:] == UNTOUCHED).all()


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("kind", ONLY_KEPT)
def test_blocks_that_are_only_kept(bench: Bench, kind: str, count: int) -> None:
    blocks, gradients = random_kept(kind, 65, 512), padded(draw(count, 65, seed=6))
    segment = Matrix(SegmentWeights(blocks, STORED_FORMATS[kind.lower()]), 0, 512, 0, gradients.shape[1])
    found, _ = bench.differentiate([segment], gradients, count * 512)
    expected = gradients[:, :65].astype(np.float64) @ blocks.numbers().astype(np.float64)
    assert relative_error(found.reshape(count, 512), expected) < 1e-5


SLOPES: dict[Activation, Callable[[F32], F32]] = {
    Activation.NONE: np.ones_like,
    Activation.TANH: lambda output: 1 - output**2,
    Activation.SIGMOID: lambda output: output * (1 - output),
    Activation.SQUARED_RELU: lambda output: 2 * np.sqrt(output),
}


@pytest.mark.parametrize("activation", SLOPES)
def test_the_activation_that_made_the_inputs(bench: Bench, activation: Activation) -> None:
    matrix, gradients, inputs = draw(24, 40), draw(9, 24, seed=6), np.abs(draw(9, 40, seed=7))
    segment = Matrix(SegmentWeights(matrix, FLOATS), 0, 40, 0, 24, inputs_from=activation)
    found, _ = bench.differentiate([segment], gradients, 9 * 40, inputs=inputs)
    expected = gradients @ matrix * SLOPES[activation](inputs)
    np.testing.assert_allclose(found.reshape(9, 40), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("adds", [False, True])
def test_gradients_add_to_what_is_there_if_wanted(bench: Bench, *, adds: bool) -> None:
    matrix, gradients = draw(24, 40), draw(9, 24, seed=6)
    found, _ = bench.differentiate([Matrix(SegmentWeights(matrix, F16), 0, 40, 0, 24)], gradients, 9 * 40, adds=adds)
    expected = gradients @ matrix + (UNTOUCHED if adds else 0)
    np.testing.assert_allclose(found.reshape(9, 40), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("formats", [(FLOATS, FLOATS, FLOATS), (F16, INT8, F16)])
def test_matrices_with_the_same_inputs_add_up(bench: Bench, formats: tuple[WeightFormat, ...]) -> None:
    """The first and the last matrix share their inputs. Two formats take a dispatch each."""
    matrices = [draw(rows, 40, seed=rows) for rows in (24, 72, 16)]
    starts, planes = (0, 24, 96), (0, 1, 0)
    gradients = draw(9, 112, seed=6)
    segments = [
        Matrix(SegmentWeights(matrix, each), plane * 9 * 40, 40, start, 112)
        for matrix, each, plane, start in zip(matrices, formats, planes, starts, strict=True)
    ]
    found, num_dispatches = bench.differentiate(segments, gradients, 2 * 9 * 40)
    first, second, third = (
        gradients[:, start : start + len(matrix)] @ stored(matrix, each)
        for matrix, each, start in zip(matrices, formats, starts, strict=True)
    )
    assert num_dispatches == len(set(formats))
    np.testing.assert_allclose(found.reshape(2, 9, 40), [first + third, second], rtol=1e-5, atol=1e-4)


def test_rows_in_several_dispatches_add_up(bench: Bench) -> None:
    matrix, gradients = draw(304, 40), draw(9, 304, seed=6)
    segment = Matrix(SegmentWeights(matrix, FLOATS), 0, 40, 0, 304)
    found, num_dispatches = bench.differentiate([segment], gradients, 9 * 40, max_binding_bytes=4 * 40 * 150)
    assert num_dispatches == 3
    np.testing.assert_allclose(found.reshape(9, 40), gradients @ matrix, rtol=1e-5, atol=1e-4)


def test_a_token_that_is_not_finite_leaves_its_neighbours_alone(bench: Bench) -> None:
    segment = Matrix(SegmentWeights(draw(24, 40), F16), 0, 40, 0, 24)
    gradients = draw(9, 24, seed=6)
    expected, _ = bench.differentiate([segment], gradients, 9 * 40)
    gradients[1] = np.nan
    found, _ = bench.differentiate([segment], gradients, 9 * 40)
    assert np.isnan(found.reshape(9, 40)[1]).all()
    np.testing.assert_array_equal(np.delete(found.reshape(9, 40), 1, 0), np.delete(expected.reshape(9, 40), 1, 0))
