"""Matmuls on the processor with onnxruntime, against numpy with the same weights."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
import psutil
import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.cpu import CpuRunner
from rnn_engine.forward.cpu_graph import GraphLayers, _Piece, _Recurrence
from rnn_engine.forward.cpu_matmul import Codes, _Matrices, load_layers, trim_heap
from rnn_engine.forward.onnx_graph import Graph
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.loading import memory
from rnn_engine.quantised import KEPT_FORMATS, Blocks, quantise, unpack_codes
from rnn_engine.reference import Array
from rnn_engine.types import F32, Model, TokenRun, run_step
from rnn_engine.versions.table import VERSIONS
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.results_contract import MODEL, OTHER_MODELS, TOKENS, MakeRunner, ResultsContract

pytestmark = pytest.mark.usefixtures("divided_steps")

LEVELS = {"nf4", "sf4", "iq4_nl", "iq4_xs"}
HELD = sorted(KEPT_FORMATS.keys() - LEVELS)
MODELS = {MODEL.shape.version: MODEL, **OTHER_MODELS}
GENERATOR = np.random.default_rng(5)


def make_runner_of(
    model: Model,
    weights: str,
    *,
    num_slots: int,
    max_tokens: int,
    num_threads: int = 1,
    max_rows: int = 64,
    num_candidates: int = 128,
) -> CpuRunner:
    choice, run_layers = WeightChoice.parse(weights), VERSIONS.get(model.shape.version).run_layers
    in_bytes = choice.activations == "int8"
    format_of = choice.of(model.shape)
    read, layers = load_layers(model, run_layers, format_of, in_bytes=in_bytes, num_threads=num_threads)
    return CpuRunner(
        read, layers, num_slots=num_slots, max_tokens=max_tokens, max_rows=max_rows, num_candidates=num_candidates
    )


def multiply(blocks: Blocks, x: F32) -> F32:
    codes, graph = Codes.of(blocks), Graph()
    assert codes is not None
    codes.add(graph, "x", "y")
    product: F32 = graph.start({"x": ("float32", ("T", x.shape[1]))}, ["y"], 1).run(None, {"x": x})[0]
    return product


class TestResults(ResultsContract):
    """In f32 the results of every version are those of numpy in f64."""

    @pytest.fixture(scope="class")
    @classmethod
    def make_runner(cls) -> MakeRunner:
        return lambda model, **limits: make_runner_of(model, "f32", **limits, num_threads=2)

    @pytest.fixture(scope="class", params=list(MODELS))
    @classmethod
    def model(cls, request: pytest.FixtureRequest) -> TensorModel:
        return MODELS[request.param]


@pytest.mark.parametrize("version", list(MODELS))
@pytest.mark.parametrize("weights", ["q8_0", "int4", "q4_1"])
def test_a_sequence_has_the_same_bits_in_any_batch_and_in_chunks_of_any_size(version: str, weights: str) -> None:
    choice = f"{weights},activations=int8"
    runner = make_runner_of(MODELS[version], choice, num_slots=4, max_tokens=64, num_threads=2)
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
    singly = tuple(range(1, 12))
    cases = ((1, 4, 9), 1, 0), (singly, 2, 0), (singly, 2, 1), ((4,), 2, 3), ((5,), 0, 2), ((2, 3), 3, 17), ((), 0, 40)
    for cuts, slot, beside in cases:
        assert np.array_equal(run(cuts, slot, beside), whole)


@pytest.mark.parametrize("count", [5, 21, 33])
def test_a_step_may_have_fewer_rows_than_a_kernel_takes_at_a_time(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> F32:
        runner = make_runner_of(MODEL, "q8_0,activations=int8", num_slots=1, max_tokens=64, num_threads=2)
        return run_step(runner, [TokenRun(0, (TOKENS[0] * 3)[:count], rows=1)]).full_row(0)

    expected = run()
    monkeypatch.setattr("rnn_engine.forward.cpu_matmul._multiple_of_rows", lambda *_: 16)
    assert np.array_equal(run(), expected)


@pytest.mark.parametrize("first_fails", [True, False])
def test_a_step_in_two_pieces_ends_if_either_fails(first_fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recur = GraphLayers._recur

    def fail(op: _Recurrence, piece: _Piece) -> None:
        if (piece.before is None) == first_fails:
            raise OSError("no memory")
        recur(op, piece)

    monkeypatch.setattr(GraphLayers, "_recur", staticmethod(fail))
    runner = make_runner_of(MODEL, "f32", num_slots=1, max_tokens=8, num_threads=2)
    with pytest.raises(OSError, match="no memory"):
        run_step(runner, [TokenRun(0, TOKENS[0][:8], rows=1)])


def test_what_is_not_finite_stays_in_its_row() -> None:
    weights = quantise(KEPT_FORMATS["q4_1"], GENERATOR.normal(size=(7, 64)).astype(np.float32))
    x = GENERATOR.normal(size=(3, 64)).astype(np.float32)
    exact = multiply(weights, x)
    x[1] = np.inf
    assert np.array_equal(multiply(weights, x)[[0, 2]], exact[[0, 2]])
    assert not np.isfinite(multiply(weights, x)[1]).any()


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("name", HELD)
def test_products_in_bytes_are_near_those_of_the_numbers(name: str, rows: int) -> None:
    blocks = make_blocks(name, 21, 512)
    x = GENERATOR.normal(size=(rows, 512)).astype(np.float32)
    found = multiply(blocks, x)
    exact = x.astype(np.float64) @ blocks.numbers().T.astype(np.float64)
    largest = np.abs(x).max(axis=-1, keepdims=True) @ np.abs(blocks.numbers()).sum(axis=-1)[np.newaxis]
    assert (np.abs(found - exact) <= largest / 254).all()  # half a step of the bytes for each input


def test_a_matrix_is_the_same_from_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"num_slots": 1, "max_tokens": 8, "max_rows": 8}
    batch = [TokenRun(0, TOKENS[0][:5], rows=5)]
    whole = run_step(make_runner_of(MODEL, "f32", **limits), batch)
    monkeypatch.setattr("rnn_engine.forward.cpu_matmul.PIECE_WEIGHTS", 3 * MODEL.shape.width)
    in_pieces = run_step(make_runner_of(MODEL, "f32", **limits, num_threads=2), batch)
    for row in range(5):
        assert np.array_equal(in_pieces.full_row(row), whole.full_row(row))


def held_beyond(weights: str) -> tuple[int, int]:
    """Return the number of weights of a model, and the bytes that a runner of it adds to this process."""
    model = random_model(tiny_shape(layers=4, width=512, head_size=64), seed=1, dtype=np.float16)
    count = sum(model.tensor(name).size for name in model.names)
    make_runner_of(MODEL, weights, num_slots=1, max_tokens=8)  # what the library itself takes is held before
    gc.collect()
    trim_heap()
    before = psutil.Process().memory_info().rss
    runner = make_runner_of(model, weights, num_slots=1, max_tokens=8)
    run_step(runner, [TokenRun(0, [1], rows=1)])
    return count, psutil.Process().memory_info().rss - before


@pytest.mark.parametrize(("weights", "bits"), [("f32", 32), ("q8_0,activations=int8", 11)])
def test_weights_are_held_once(weights: str, bits: float) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # in which no other test has left anything
        count, held = pool.submit(held_beyond, weights).result()
    assert held <= 1.25 * count * bits / 8 + 12e6


def test_what_was_read_for_a_graph_is_freed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, read = _Matrices.fetch, list[weakref.ref[Array]]()

    def watch(matrices: _Matrices, name: str) -> Array:
        read.append(weakref.ref(found := fetch(matrices, name).copy()))  # the model keeps its own
        return found

    monkeypatch.setattr(_Matrices, "fetch", watch)
    gc.disable()
    try:
        runner = make_runner_of(MODEL, "f32", num_slots=1, max_tokens=8)
        assert read
        assert not [array for each in read if (array := each()) is not None and array.ndim == 2]
    finally:
        gc.enable()
    runner.close()


def test_without_the_library_cpu_has_floats_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.cpu_has("q4_0")
    assert not memory.cpu_has("f16")
    monkeypatch.setattr(memory, "has_onnxruntime", lambda: False)
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
