"""Models of every version run on a device with the least limits of WebGPU and none of its optional features."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from rnn_engine.backward import Optimizer, TrainingDocument
from rnn_engine.types import F32, TokenDraw, TokenRun, run_step
from tests.support.cpu import make_cpu_runner
from tests.support.gpu import make_gpu_runner
from tests.support.results_contract import MODEL, OTHER_MODELS, TOKENS, Limits
from tests.support.trainers import make_cpu_trainer, make_gpu_trainer

MODELS = {"v7": MODEL, **OTHER_MODELS}


@pytest.mark.parametrize("version", ["v7", "v7-deepembed", "v7-qwen2", "v6", "v6-qwen2", "v5.2", "v4"])
def test_rows_and_states_are_those_of_the_reference(version: str) -> None:
    model, limits = MODELS[version], Limits(num_slots=3, max_tokens=40, max_rows=8, num_candidates=16)
    with (
        closing(make_gpu_runner(model, kind="least", weights="f16", **limits)) as runner,
        closing(make_cpu_runner(model, **limits)) as reference,
    ):
        for batch in (
            [TokenRun(0, TOKENS[0][:33], rows=2), TokenRun(2, TOKENS[1][:5], rows=1)],
            [TokenRun(slot, [7 + slot], rows=1, draw=TokenDraw(0, 0, 5, 0.9, 1.0)) for slot in (2, 0)],
        ):
            found = run_step(runner, batch)
            expected = run_step(reference, [replace(run, draw=None) for run in batch])
            for row in range(sum(run.rows for run in batch)):
                assert_close(found.full_row(row), expected.full_row(row))
        for name, values in reference.read_state(0).items():
            assert_close(runner.read_state(0)[name], values)


def test_quantised_matrices_are_multiplied_as_on_other_devices() -> None:
    limits, weights = Limits(num_slots=1, max_tokens=8, max_rows=8, num_candidates=16), "int8,head=q4_k,adapters=f32"
    rows = []
    for kind in ("least", "software"):
        with closing(make_gpu_runner(MODEL, kind=kind, weights=weights, **limits)) as runner:
            readout = run_step(runner, [TokenRun(0, TOKENS[0][:5], rows=5)])
            rows.append(np.stack([readout.full_row(row) for row in range(5)]))
    assert_close(*rows)


@pytest.mark.parametrize("version", ["v7", "v6"])
def test_gradients_are_those_of_the_reference(version: str) -> None:
    weights = np.ones(len(TOKENS[0]), np.float32)
    weights[0] = 0
    document = TrainingDocument(np.array(TOKENS[0], np.int32), weights)
    results = []
    for trainer in (
        make_gpu_trainer(
            MODELS[version], optimizer=Optimizer(), trains_shifts=True, max_documents=1, max_tokens=40, kind="least"
        ),
        make_cpu_trainer(
            MODELS[version], optimizer=Optimizer(), trains_shifts=True, max_documents=1, max_tokens=40, dtype=np.float64
        ),
    ):
        with closing(trainer):
            loss = trainer.accumulate([document], 1.0)
            results.append([np.array(loss), *trainer.gradient().values()])
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected)


def assert_close(found: F32, expected: F32) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
