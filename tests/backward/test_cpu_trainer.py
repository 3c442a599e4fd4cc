"""The trainer without a GPU: the contract of all trainers, and its own features."""

from __future__ import annotations

import numpy as np
import pytest

from rnn_engine.backward import Optimizer
from tests.support.reference import relative_error
from tests.support.trainer_contract import DOCUMENTS, MODEL, MakeTrainer, TrainerContract
from tests.support.trainers import make_cpu_trainer


@pytest.fixture(scope="module")
def make_trainer() -> MakeTrainer:
    return make_cpu_trainer


class TestCpuTrainer(TrainerContract):
    pass


def test_f32_is_near_f64() -> None:
    gradients = []
    for dtype in (np.float32, np.float64):
        trainer = make_cpu_trainer(
            MODEL, optimizer=Optimizer(), trains_shifts=True, max_documents=3, max_tokens=40, dtype=dtype
        )
        trainer.accumulate(DOCUMENTS, 1.0)
        gradients.append(trainer.gradient())
    for name, values in gradients[1].items():
        assert relative_error(gradients[0][name], values) < 1e-5
