"""RWKV-7 with a format for each matrix, among them bytes, compared with numpy on the rounded weights."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from rnn_engine.forward.weight_formats import WEIGHT_FORMATS, WeightFormat
from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.types import TokenRun, run_step
from tests.support.gpu import KINDS, make_gpu_runner
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.reference import forward

MODEL = random_model(tiny_shape(layers=2, width=64, ffn=72), seed=7, dtype=np.float16)
TOKENS: list[int] = np.random.default_rng(8).integers(MODEL.shape.vocab_size, size=40).tolist()
INT8 = WEIGHT_FORMATS["q8_0"]
BYTES = {"key.weight", "value.weight", "w1", "g2"}  # the last parts of the names of matrices stored in bytes


def format_of(name: str) -> WeightFormat:
    return INT8 if any(name.endswith(f".{part}") for part in BYTES) else WEIGHT_FORMATS["f16"]


def rounded(model: TensorModel) -> TensorModel:
    """Return the model with the weights that the device computes with. Adapters are stored transposed, as [out, in]."""
    tensors = dict(model.tensors)
    for name, values in model.tensors.items():
        if format_of(name) is INT8:
            matrix = values if name.endswith(".weight") else values.T
            stored = INT8.unpack(INT8.pack(matrix), *matrix.shape)
            tensors[name] = stored if name.endswith(".weight") else stored.T
    return TensorModel(model.shape, tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_states_are_those_of_the_rounded_weights(kind: str) -> None:
    runner = make_gpu_runner(
        MODEL, num_slots=2, max_tokens=64, max_rows=40, num_candidates=8, kind=kind, weights=format_of
    )
    logits, state = forward(rounded(MODEL), TOKENS, dtype=np.float64)
    unrounded, _ = forward(MODEL, TOKENS, dtype=np.float64)
    assert np.abs(unrounded - logits).max() > 1e-2  # so the test can distinguish them
    done = 0
    for part in (TOKENS[:30], *([token] for token in TOKENS[30:34]), TOKENS[34:]):
        readout = run_step(runner, [TokenRun(1, part, rows=len(part))])
        for row in range(len(part)):
            np.testing.assert_allclose(readout.full_row(row), logits[done + row], atol=1e-4 * np.abs(logits).max())
        done += len(part)
    for name, values in runner.read_state(1).items():
        np.testing.assert_allclose(values, state[name], atol=1e-4 * np.abs(state[name]).max())
    runner.close()


def test_a_matmul_is_split_where_formats_differ() -> None:
    runner = make_gpu_runner(
        MODEL, num_slots=1, max_tokens=8, max_rows=1, num_candidates=8, kind="discrete", weights=format_of
    )
    plan = str(runner.plan(1, 1, 0))
    for line in (
        "layer 1 projections: matmul 32 x 1\nlayer 1 projections: matmul 24 x 1\n",  # r, a1, g1, v1; k, v, w1
        "layer 1 gates: matmul 24 x 1\nlayer 1 gates: matmul 8 x 1\n",  # w2, a2, v2; g2
        "layer 1 output: matmul 8 x 1\nlayer 1 key: matmul 16 x 1\n",
    ):
        assert line in plan
    runner.close()


def test_a_step_reads_the_bytes_of_each_format() -> None:
    make = partial(make_gpu_runner, MODEL, num_slots=1, max_tokens=8, max_rows=1, num_candidates=8)
    halves, mixed = make(weights="f16"), make(weights=format_of)
    rows, blocks = 64, 3  # of an ffn value matrix: 72 columns are 9 eights, and 3 blocks of 32
    saved_by_value = 2 * rows * 72 - rows * blocks * (32 + 2)
    assert mixed.weight_bytes < halves.weight_bytes - MODEL.shape.num_layers * saved_by_value
    halves.close()
    mixed.close()


def test_a_model_is_loaded_with_a_format_for_each_tensor() -> None:
    asked: set[str] = set()

    def format_of(name: str) -> WeightFormat:
        asked.add(name)
        return WEIGHT_FORMATS["f32" if name == "head.weight" else "f16"]

    load_runner(MODEL, size=RunnerSize(1), weights=format_of).close()
    assert asked >= {"head.weight", "blocks.0.att.w1", "blocks.1.att.v2", "blocks.1.ffn.value.weight"}
    assert "blocks.0.att.v1" not in asked  # layer 0 has no value residual
