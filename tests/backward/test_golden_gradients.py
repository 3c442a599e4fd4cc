"""The trainer in numpy, compared with the gradients that torch's autograd has computed."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import DTypeLike

from rnn_engine.backward import Optimizer, TrainingDocument, TrainingState
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.trainer import find_pairs
from rnn_engine.versions.table import VERSIONS
from tests.support.golden import GRADIENT_NAMES, LORA, load_golden, load_gradients
from tests.support.reference import relative_error
from tests.support.trainers import make_cpu_trainer
from tools.golden.cases import CASES


@pytest.mark.parametrize("name", GRADIENT_NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-7), (np.float32, 1e-5)])
def test_golden_gradients(name: str, dtype: DTypeLike, tolerance: float) -> None:
    golden, expected = load_golden(name), load_gradients(name)
    weights = np.ones(len(golden.tokens), np.float32)
    weights[0] = 0
    with open_model(golden.model_path) as model:
        trainer = make_cpu_trainer(
            model, optimizer=Optimizer(), trains_shifts=True, max_documents=1, max_tokens=len(weights), dtype=dtype
        )
    moments = {name: np.zeros_like(values) for name, values in expected.state.items()}
    trainer.write(TrainingState(expected.state, moments, moments, 0))
    assert trainer.accumulate([TrainingDocument(golden.tokens, weights)], 1.0) == pytest.approx(
        expected.loss, rel=tolerance
    )
    for field, values in trainer.gradient().items():
        assert relative_error(values, expected.gradient[field]) < tolerance  # measured: 2.8e-6 at most, in f32


@pytest.mark.parametrize("name", GRADIENT_NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-7), (np.float32, 2e-5)])
def test_golden_gradients_of_a_lora(name: str, dtype: DTypeLike, tolerance: float) -> None:
    if name == "v5.0-head32" and dtype == np.float32:
        tolerance = 2e-3  # noise of 2e-6 in these pairs moves a gradient by 4e-3
    golden, expected = load_golden(name), load_gradients(name, "lora")
    weights = np.ones(len(golden.tokens), np.float32)
    weights[0] = 0
    with open_model(golden.model_path) as model:
        pairs = find_pairs(LORA, model.tensors)
        trainer = make_cpu_trainer(
            model,
            optimizer=Optimizer(),
            trains_shifts=False,
            max_documents=1,
            max_tokens=len(weights),
            dtype=dtype,
            pairs=pairs,
        )
    moments = {name: np.zeros_like(values) for name, values in expected.state.items()}
    trainer.write(TrainingState(expected.state, moments, moments, 0))
    loss = trainer.accumulate([TrainingDocument(golden.tokens, weights)], 1.0)
    assert loss == pytest.approx(expected.loss, rel=tolerance)
    found = trainer.gradient()
    assert set(found) == set(expected.gradient) == set(pairs.shapes)
    for half, values in found.items():
        assert relative_error(values, expected.gradient[half]) < tolerance


def test_every_version_that_can_be_trained_has_golden_gradients() -> None:
    assert set(GRADIENT_NAMES) == {case.name for case in CASES if case.with_gradients}
    trained = {version.name for version in VERSIONS.rows if version.run_backward is not None}
    assert {case.shape.version for case in CASES if case.with_gradients} == trained
