"""Matmuls on the processor with onnxruntime, against numpy with the same weights."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.cpu import CpuRunner
from rnn_engine.forward.cpu_matmul import Codes, MatMulWeights, Threads, _make_matmul
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.loading import memory
from rnn_engine.quantised import KEPT_FORMATS, Blocks, quantise, unpack_codes
from rnn_engine.types import F32, Model, TokenRun, run_step
from rnn_engine.versions.table import VERSIONS
from tests.support.models import TensorModel
from tests.support.results_contract import MODEL, OTHER_MODELS, TOKENS, MakeRunner, ResultsContract

LEVELS = {"nf4", "sf4", "iq4_nl", "iq4_xs"}
HELD = sorted(KEPT_FORMATS.keys() - LEVELS)
MODELS = {MODEL.shape.version: MODEL, **OTHER_MODELS}
GENERATOR = np.random.default_rng(5)
ONE = Threads(1)


def make_runner_of(model: Model, weights: str, *, num_slots: int, max_tokens: int, **limits: int) -> CpuRunner:
    choice = WeightChoice.parse(weights)
    read = MatMulWeights.load(model, choice.of(model.shape), in_bytes=choice.activations == "int8", num_threads=1)
    run_layers = VERSIONS.get(model.shape.version).run_layers
    return CpuRunner(read, run_layers, num_slots=num_slots, max_tokens=max_tokens, **limits)


class TestResults(ResultsContract):
    """In f32 the results of every version are those of numpy in f64."""

    @pytest.fixture(scope="class")
    @classmethod
    def make_runner(cls) -> MakeRunner:
        return lambda model, **limits: make_runner_of(model, "f32", **limits)

    @pytest.fixture(scope="class", params=list(MODELS))
    @classmethod
    def model(cls, request: pytest.FixtureRequest) -> TensorModel:
        return MODELS[request.param]


@pytest.mark.parametrize("version", list(MODELS))
@pytest.mark.parametrize("weights", ["q8_0", "int4", "q4_1"])
def test_a_sequence_has_the_same_bits_in_any_batch_and_in_chunks_of_any_size(version: str, weights: str) -> None:
    runner = make_runner_of(MODELS[version], f"{weights},activations=int8", num_slots=4, max_tokens=64)
    sequence, other = TOKENS[0][:12], TOKENS[1]

    def run(cuts: tuple[int, ...], slot: int, beside: int) -> F32:
        """Return the logits of all tokens, run in parts, each beside `beside` tokens of another sequence."""
        for each in range(4):
            runner.write_state(each, None)
        rows = []
        for start, end in pairwise((0, *cuts, len(sequence))):
            batch = [TokenRun(slot, sequence[start:end], rows=end - start)]
            if beside:
                batch.insert(0, TokenRun(3 - slot, other[:beside], rows=1))
            readout = run_step(runner, batch)
            first = len(batch) - 1
            rows += [readout.full_row(first + row) for row in range(end - start)]
        return np.stack(rows)

    whole = run((), 0, 0)
    for cuts, slot, beside in (((1, 4, 9), 1, 0), (tuple(range(1, 12)), 2, 0), ((5,), 0, 2), ((2, 3), 3, 17)):
        assert np.array_equal(run(cuts, slot, beside), whole)


def test_what_is_not_finite_stays_in_its_row() -> None:
    weights = quantise(KEPT_FORMATS["q4_1"], GENERATOR.normal(size=(7, 64)).astype(np.float32))
    multiply = _make_matmul(weights, lambda rows: rows, ONE, in_bytes=True)
    x = GENERATOR.normal(size=(3, 64)).astype(np.float32)
    exact = multiply(x)
    x[1] = np.inf
    assert np.array_equal(multiply(x)[[0, 2]], exact[[0, 2]])
    assert not np.isfinite(multiply(x)[1]).any()


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("name", HELD)
def test_products_in_bytes_are_near_those_of_the_numbers(name: str, rows: int) -> None:
    blocks = make_blocks(name, 21, 512)
    x = GENERATOR.normal(size=(rows, 512)).astype(np.float32)
    found = _make_matmul(blocks, lambda rows: rows, ONE, in_bytes=True)(x)
    exact = x.astype(np.float64) @ blocks.numbers().T.astype(np.float64)
    largest = np.abs(x).max(axis=-1, keepdims=True) @ np.abs(blocks.numbers()).sum(axis=-1)[np.newaxis]
    assert (np.abs(found - exact) <= largest / 254).all()  # half a step of the bytes for each input


@pytest.mark.parametrize(("threads", "piece"), [(1, 640), (3, 1 << 24)])
def test_a_large_matrix_is_held_in_pieces(threads: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("_PIECE_WEIGHTS", piece), ("_SHARED_WEIGHTS", 1), ("_SHARED_PRODUCTS", 64 * 23 * 2)):
        monkeypatch.setattr(f"rnn_engine.forward.cpu_matmul.{name}", count)
    matrix = GENERATOR.normal(size=(23, 64)).astype(np.float32)
    x = GENERATOR.normal(size=(4, 64)).astype(np.float32)
    multiply = _make_matmul(matrix, lambda rows: rows, Threads(threads), in_bytes=False)
    assert np.allclose(multiply(x), x @ matrix.T, rtol=1e-5, atol=1e-5)
    assert np.array_equal(multiply(x[:1]), multiply(x)[:1])  # in one thread, since it is little
    assert multiply(x[:0]).shape == (0, 23)


def test_without_the_library_cpu_has_floats_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.cpu_has("q4_0")
    assert not memory.cpu_has("f16")
    monkeypatch.setattr(memory, "has_matmuls", lambda: False)
    assert memory.cpu_has("stored")
    with pytest.raises(InvalidRequestError, match=r"rnn-engine\[cpu\]"):
        memory.check_cpu_weights("q4_0")


def make_blocks(name: str, rows: int, columns: int) -> Blocks:
    """Return a matrix of random codes and figures, since some formats can't be converted to."""
    kind = KEPT_FORMATS[name]
    blocks = columns // kind.block_columns
    codes = GENERATOR.integers(0, 256, (rows, blocks, kind.block_columns * kind.code_bits // 8), np.uint8)
    figures = GENERATOR.uniform(-1, 1, (rows, blocks, kind.num_figures)).astype(np.float16)
    parts = GENERATOR.integers(0, 256, (rows, blocks, 2 * (kind.num_figures - kind.num_scales)), np.uint8)
    figures[..., kind.num_scales :] = parts.view(np.float16)
    return Blocks(kind, columns, codes, figures)


@pytest.mark.parametrize("name", HELD)
def test_codes_are_the_weights_of_their_blocks(name: str) -> None:
    blocks = make_blocks(name, 5, 512)
    codes = Codes.of(blocks)
    assert codes is not None
    steps = unpack_codes(codes.codes, codes.bits).astype(np.float64) - (8 if codes.bits == 4 else 128)
    offsets = 0 if codes.offsets is None else codes.offsets[..., np.newaxis]
    found = (steps * codes.scales[..., np.newaxis] + offsets).reshape(5, 512)
    exact = blocks.numbers()
    assert np.abs(found - exact).max() <= 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("name", sorted(LEVELS))
def test_levels_and_rows_that_end_in_a_block_have_no_codes(name: str) -> None:
    assert Codes.of(make_blocks(name, 3, 256)) is None
    assert Codes.of(quantise(KEPT_FORMATS["int8"], np.ones((2, 129), np.float32))) is None
